"""Physics of MuJoCo models as device functions, compiled for one model at a time."""
