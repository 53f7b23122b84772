"""Numbers of MuJoCo's enumerations (MuJoCo's documentation, "API reference: mjModel") that the engine uses."""

FREE, BALL, SLIDE, HINGE = range(4)  # mjtJoint
PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)  # mjtGeom
GEOM_NAMES = ("plane", "hfield", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
IN_JOINT, IN_PARENT, IN_TENDON = 0, 1, 3  # mjtTrn
NO_DYNAMICS, INTEGRATOR, FILTER, FILTER_EXACT = range(4)  # mjtDyn
FIXED, AFFINE = range(2)  # mjtGain
NO_BIAS, AFFINE_BIAS = range(2)  # mjtBias
WRAP_JOINT, WRAP_PULLEY, WRAP_SITE = 1, 2, 3  # mjtWrap
TOUCH, VELOCIMETER, GYRO, JOINTPOS, JOINTVEL = 0, 2, 3, 9, 10  # mjtSensor
FRAMEPOS, FRAMEXAXIS, FRAMEZAXIS, SUBTREECOM, SUBTREELINVEL = 26, 28, 30, 35, 36
OBJ_BODY, OBJ_XBODY, OBJ_GEOM, OBJ_SITE = 1, 2, 5, 6  # mjtObj
EULER, RK4, IMPLICIT, IMPLICITFAST, DISCRETE = range(5)  # mjtIntegrator
CONNECT, WELD, EQUAL_JOINT, EQUAL_TENDON = range(4)  # mjtEq
PGS, CG, NEWTON = range(3)  # mjtSolver
PYRAMIDAL, ELLIPTIC = range(2)  # mjtCone
MAXVAL = 1e10  # mjMAXVAL: greatest number of a state
MINVAL = 1e-15  # mjMINVAL: least denominator
MINMU = 1e-5  # mjMINMU: least friction coefficient
MOST_TREES = 62  # of a model: the solvers keep its islands as bits of an int64
MINIMP, MAXIMP = 0.0001, 0.9999  # least and greatest impedance

# mjtDisableBit
(
    NO_CONSTRAINT, NO_EQUALITY, NO_FRICTIONLOSS, NO_LIMIT, NO_CONTACT, NO_SPRING, NO_DAMPER, NO_GRAVITY, NO_CLAMPCTRL,
    NO_WARMSTART, NO_FILTERPARENT, NO_ACTUATION, NO_REFSAFE, NO_SENSOR, NO_MIDPHASE, NO_EULERDAMP, NO_AUTORESET,
    NO_NATIVECCD, NO_ISLAND, NO_MULTICCD,
) = (1 << k for k in range(20))  # fmt: skip
