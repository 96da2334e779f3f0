"""Why a claim fits on no node: per device (`rejection`), by leaving one demand away (`nearest_fit`), both for
a whole group (`diagnosis`)."""
