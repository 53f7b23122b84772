"""Display of runs where Python code runs, a terminal or a notebook: progress lines and pictures. Progress is read from
the files of a run.
"""
