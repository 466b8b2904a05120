//! The choices of lowering, each timed against its alternatives: `bench-lowering [NAME]...` prints a table.
//!
//! A row is a piece of work and forms of it that mean the same. The first form is what the library does.
#![forbid(unsafe_code)]

mod form;
mod images;
#[path = "../processors.rs"]
mod processors;
#[path = "../program.rs"]
mod program;
mod sequences;

use std::error::Error;
use std::process::ExitCode;

use form::{Row, Timer};

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    processors::use_some(0, 2)?;
    let rows: Vec<Row> = images::rows()
        .into_iter()
        .chain(sequences::rows())
        .filter(|row| names.is_empty() || names.iter().any(|name| name == row.name))
        .collect();
    if rows.is_empty() {
        return Err(format!("found no row among {names:?}").into());
    }
    let timer = Timer::new()?;
    println!("| work | form | median | of the first | why |\n|---|---|---:|---:|---|");
    for row in rows {
        let times = timer.time(&row)?;
        for (index, (form, time)) in row.forms.iter().zip(&times).enumerate() {
            let why = if index == 0 { row.why } else { "" };
            let ratio = time / times[0];
            println!(
                "| {} | {} | {time:.2} ms | {ratio:.2} | {why} |",
                row.shown, form.label
            );
        }
    }
    Ok(())
}
