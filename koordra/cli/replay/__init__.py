"""`koordra replay`: command reads OpenB lists, dlrm the DLRM trace."""
