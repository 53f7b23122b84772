"""Display of runs where Python code runs, a terminal or a notebook: progress lines and pictures. Knows files of runs
and Pillow's formats; nothing of training.
"""
