"""`koordra plan`, `koordra explain`, `koordra convert`; files is how they read manifests."""
