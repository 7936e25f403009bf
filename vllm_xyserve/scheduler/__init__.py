"""The xyserve schedulers: subclasses of whatever scheduler the parent platform would use."""
