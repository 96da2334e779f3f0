"""The parts of the SVG picture: pen (elements and colours), plan (where everything goes), and one module for
each part."""
