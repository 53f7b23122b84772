"""Networks, action distributions, normalizers and the optimizer. Knows no algorithm and no world."""
