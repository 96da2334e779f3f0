"""Why a claim fits on no node: per device (`rejection`), by leaving one demand away (`nearest_fit`), told in order (`diagnosis`)."""
