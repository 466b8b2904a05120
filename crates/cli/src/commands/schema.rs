//! `phalanx schema`.

use super::Context;
use crate::config::json_schema::schema;
use crate::failure::Failure;

/// Prints the JSON Schema of training files.
pub(crate) fn run(context: &mut Context) -> Result<(), Failure> {
    context.output.line(format_args!("{:#}", schema()))
}
