//! Reading data: `bench-input WORK FOLDER SECONDS`, the protocol of `bench/peers/README.md`.
//!
//! `bench-input make FOLDER` writes the data that all read.
#![forbid(unsafe_code)]

mod processors;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use phalanx::data::{
    Batches, Dataset, Example, HostTensor, TfRecordOptions, TfRecordWriter, shard_path,
};
use phalanx_graph::{DType, Shape};

type Done = Result<(), Box<dyn Error>>;

/// Files of each kind of records.
const FILES: usize = 4;
/// Name, bytes of a record, records of a file, batch.
const RECORDS: [(&str, usize, usize, usize); 2] = [
    ("records_1k", 1_000, 50_000, 256),
    ("records_100k", 100_000, 500, 32),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    processors::use_first(2)?;
    match words[..] {
        ["make", folder] => make(Path::new(folder)),
        [work, folder, seconds] => timed(
            work,
            Path::new(folder),
            Duration::from_secs_f64(seconds.parse()?),
        ),
        _ => Err("usage: bench-input make FOLDER, or bench-input WORK FOLDER SECONDS".into()),
    }
}

/// Files of records of random bytes.
fn make(folder: &Path) -> Done {
    for (name, size, count, _) in RECORDS {
        for file in 0..FILES {
            let mut writer = TfRecordWriter::create(shard_path(folder, name, file, FILES))?;
            let mut state = file as u64 + 1;
            for _ in 0..count {
                writer.write(&random_bytes(size, &mut state))?;
            }
            writer.finish()?;
        }
    }
    Ok(())
}

/// Bytes of xorshift64.
fn random_bytes(size: usize, state: &mut u64) -> Vec<u8> {
    let words = std::iter::repeat_with(|| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        state.to_le_bytes()
    });
    words.take(size.div_ceil(8)).flatten().take(size).collect()
}

fn timed(work: &str, folder: &Path, limit: Duration) -> Done {
    let Some((name, _, _, batch)) = RECORDS.into_iter().find(|record| record.0 == work) else {
        return Err(format!("found work {work:?}, expected records_1k or records_100k").into());
    };
    let pattern = folder.join(format!("{name}-*")).display().to_string();
    let options = TfRecordOptions::default();
    let records = Dataset::from_tfrecords(&pattern, &options, |record| {
        Ok(Example {
            x: HostTensor::from_bytes(Shape::new(DType::U8, [record.len()]), record)
                .into_iter()
                .collect(),
            ..Example::default()
        })
    })?;
    report(work, &records.batch(batch).autotune(), limit)
}

/// Epochs until the time is over; the first does not count.
fn report(work: &str, batches: &Batches, limit: Duration) -> Done {
    epoch(batches, 0)?;
    let (start, mut items, mut number) = (Instant::now(), 0, 0);
    while start.elapsed() < limit {
        number += 1;
        items += epoch(batches, number)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}",
        serde_json::json!({
            "framework": "phalanx", "version": env!("CARGO_PKG_VERSION"), "variant": "", "work": work,
            "items": items, "seconds": seconds,
        })
    );
    Ok(())
}

/// Number of examples of an epoch.
fn epoch(batches: &Batches, number: u64) -> Result<usize, phalanx::Error> {
    let mut items = 0;
    for batch in batches.iter(number, 0) {
        items += batch?.rows();
    }
    Ok(items)
}
