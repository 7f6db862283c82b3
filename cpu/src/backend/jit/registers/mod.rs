//! Guest state in native code: host registers, fields of the processor, and the frame.

pub(crate) mod frame;
pub(crate) mod map;
pub(crate) mod processor;
pub(crate) mod scratch;
