"""The report page live, on loopback: choose a model and a cluster, move sliders, see the plan."""
