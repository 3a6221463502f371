//! What a policy is to whoever trains it: the engine trait and the embedded engine
