"""What runs in the container: parse the spec, call the library, report. One module a job."""
