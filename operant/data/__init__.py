"""What lies between acting and learning: noise, minibatches, returns. Knows no network and no loss."""
