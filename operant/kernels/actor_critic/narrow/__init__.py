"""Engine for narrow networks (up to 256 units): every program runs a whole network over a tile of samples."""
