"""`koordra claims`, `koordra devices`, `koordra cordon-device`; cluster_objects is how they read the cluster."""
