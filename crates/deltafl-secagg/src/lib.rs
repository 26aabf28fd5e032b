//! Secure aggregation without I/O: the server learns the sum of the devices' vectors and nothing else.
