"""The checks, one module for each chapter of SPEC.md and level; every module here is imported by the catalogue."""
