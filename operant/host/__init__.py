"""What steps outside environments (Gymnasium's, ALE's, EnvPool's, a user's class), also in processes of their own:
numpy and Gymnasium alone, no torch.

A worker process imports nothing but this package, so that it starts at once and stays small. Knows no policy, no tensor
and no world.
"""
