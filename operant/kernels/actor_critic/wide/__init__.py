"""Engine for wide networks (up to 1,024 units) and large batches: one launch a layer, over the whole batch."""
