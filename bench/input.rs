//! Reading data: `bench-input WORK FOLDER SECONDS`, the protocol of `bench/peers/README.md`.
//!
//! `bench-input make FOLDER` writes the records that all read; `decode` and `memory` are ours alone: the most that whole
//! images can be decoded, and the memory in use after some epochs.
#![forbid(unsafe_code)]

mod processors;
mod program;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use phalanx::data::{
    Batches, Dataset, Example, HostTensor, ImageFolder, Records, TfRecordOptions, TfRecordWriter,
    shard_path,
};
use phalanx::image::{Decoder, DecoderOptions, ImagePipeline, Region, Scale};
use phalanx_graph::{DType, Shape};

type Done = Result<(), Box<dyn Error>>;

/// Processors, as every framework has.
const THREADS: usize = 2;
/// Files of each kind of records.
const FILES: usize = 4;
/// Name, bytes of a record, records of a file, batch.
const RECORDS: [(&str, usize, usize, usize); 2] = [
    ("records_1k", 1_000, 50_000, 256),
    ("records_100k", 100_000, 500, 32),
];
const MOST_BYTES: u64 = 1 << 24;
/// Epochs after which the memory in use is printed.
const EPOCHS: [u64; 3] = [1, 10, 100];
/// How long the reader waits with the first batch of an epoch where memory is measured: until all that may be made ahead is
/// there, so that the number of batches in memory is not up to chance.
const PAUSE: Duration = Duration::from_millis(30);

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    processors::use_some(0, THREADS)?;
    let [work, folder, rest @ ..] = &words[..] else {
        return Err("usage: bench-input make FOLDER, or bench-input WORK FOLDER SECONDS".into());
    };
    let folder = Path::new(folder);
    let seconds = rest.first().unwrap_or(&"3").parse()?;
    let limit = Duration::from_secs_f64(seconds);
    match *work {
        "make" => make(folder),
        "images" => report(work, &images(folder)?.autotune(), limit),
        "decode" => decode(folder, limit),
        "memory" => memory(folder),
        work => report(work, &records(work, folder)?.autotune(), limit),
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

/// Batches of the bytes of records.
fn records(work: &str, folder: &Path) -> Result<Batches, Box<dyn Error>> {
    let Some((name, _, _, batch)) = RECORDS.into_iter().find(|record| record.0 == work) else {
        let names = "records_1k, records_100k, images, decode or memory";
        return Err(format!("found work {work:?}, expected {names}").into());
    };
    let pattern = folder.join(format!("{name}-*")).display().to_string();
    let records = Dataset::from_tfrecords(&pattern, &TfRecordOptions::default(), |record| {
        let shape = Shape::new(DType::U8, [record.len()]);
        Ok(Example {
            x: HostTensor::from_bytes(shape, record).into_iter().collect(),
            ..Example::default()
        })
    })?;
    Ok(records.batch(batch))
}

/// Batches of 32 random parts of 224 by 224 pixels, flipped at random and normalised.
fn images(folder: &Path) -> Result<Batches, Box<dyn Error>> {
    let folder = ImageFolder::open(folder.join("images"), MOST_BYTES)?;
    let plan = ImagePipeline {
        region: Region::Crop,
        flip: true,
        scale: Scale::Standard {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
        },
        ..ImagePipeline::new(224, 224)
    };
    Ok(Dataset::from_images(folder, &plan, 1)?.batch(32))
}

/// Epochs until the time is over; the first does not count.
fn report(work: &str, batches: &Batches, limit: Duration) -> Done {
    epoch(batches, 0)?;
    let (start, mut items, mut number) = (Instant::now(), 0, 0);
    while start.elapsed() < limit {
        number += 1;
        items += epoch(batches, number)?;
    }
    say(work, items, start.elapsed());
    Ok(())
}

fn say(work: &str, items: usize, elapsed: Duration) {
    let line = serde_json::json!({
        "framework": "phalanx", "version": env!("CARGO_PKG_VERSION"), "variant": "", "work": work,
        "items": items, "seconds": elapsed.as_secs_f64(),
    });
    println!("{line}");
}

/// Number of examples of an epoch.
fn epoch(batches: &Batches, number: u64) -> Result<usize, phalanx::Error> {
    let mut items = 0;
    for batch in batches.iter(number, 0) {
        items += batch?.rows();
    }
    Ok(items)
}

/// Whole images decoded from memory on every processor, and nothing else.
fn decode(folder: &Path, limit: Duration) -> Done {
    let folder = ImageFolder::open(folder.join("images"), MOST_BYTES)?;
    let files: Vec<Vec<u8>> = (0..folder.len())
        .map(|i| folder.get(i).map(|image| image.bytes))
        .collect::<Result<_, _>>()?;
    let (start, next) = (Instant::now(), AtomicUsize::new(0));
    let decode_some = || -> Result<(), phalanx::Error> {
        let mut decoder = Decoder::new(DecoderOptions::default());
        while start.elapsed() < limit {
            let i = next.fetch_add(1, Ordering::Relaxed);
            decoder.decode(&files[i % files.len()])?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(decode_some)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| "a thread that decodes panicked")?
                .map_err(Box::<dyn Error>::from)
        })
    })?;
    say("decode", next.into_inner(), start.elapsed());
    Ok(())
}

/// The memory in use after some of a hundred epochs of records and of few images.
fn memory(folder: &Path) -> Done {
    let works = [
        ("records", records("records_100k", folder)?),
        ("images", images(folder)?.take(2)),
    ];
    for (name, batches) in works {
        let batches = batches.autotune();
        for number in 1..=EPOCHS[EPOCHS.len() - 1] {
            paused_epoch(&batches, number)?;
            if EPOCHS.contains(&number) {
                let line = serde_json::json!({"work": "memory", "of": name, "epoch": number, "mib": resident_mib()?});
                println!("{line}");
            }
        }
    }
    Ok(())
}

fn paused_epoch(batches: &Batches, number: u64) -> Result<(), phalanx::Error> {
    let mut batches = batches.iter(number, 0);
    let first = batches.next().transpose()?;
    std::thread::sleep(PAUSE);
    drop(first);
    batches.try_for_each(|batch| batch.map(drop))
}

/// MiB of memory that this process has in use.
fn resident_mib() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("found no VmRSS")?.parse::<u64>()? / 1024)
}
