"""SmoothGEMM: the linear method of unquantised layers."""
