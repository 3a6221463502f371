//! CPU kernels, their dispatch, buffers and memory mapping
