//! Tests of crate `remote`.

mod gang;
