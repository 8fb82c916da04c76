"""Where a pipeline is cut: the best split under every family, with its bound."""
