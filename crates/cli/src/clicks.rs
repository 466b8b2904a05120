//! A CSV file of made-up clicks, for examples: `phalanx data clicks`.

use std::fmt::{self, Display, Formatter};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use phalanx::data::{Batch, HostTensor};
use phalanx::datasets;

use crate::failure::{Exit, Failure};
use crate::files::create;

/// Rows that are written at once.
const ROWS: usize = 4096;

/// The options of the command.
#[derive(Debug, Args)]
pub struct Clicks {
    /// The file
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Number of users
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    users: u32,
    /// Number of items
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    items: u32,
    /// Number of rows
    #[arg(long, value_name = "N", default_value_t = 220_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// What the clicks follow from
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Replace the file if it is there
    #[arg(long)]
    overwrite: bool,
}

/// What was written.
impl Display for Clicks {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (count, users, items) = (self.count, self.users, self.items);
        let to = self.to.display();
        write!(f, "{count} rows of {users} users and {items} items in {to}")
    }
}

impl Clicks {
    /// Writes the rows of [`datasets::clicks`] as `user,item,clicked`; the folder of the file is made.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let failed = |why: String| {
            let message = format!("cannot write {}: {why}", self.to.display());
            Failure::new(Exit::Failed, message).next("choose another --to")
        };
        let clicks = datasets::clicks(self.users, self.items, self.count as usize, self.seed);
        let clicks = clicks.map_err(|error| failed(error.to_string()))?;
        let mut file = BufWriter::new(create(&self.to, self.overwrite)?);
        let mut written = file.write_all(b"user,item,clicked\n");
        for batch in clicks.batch(ROWS).iter(0, 0) {
            let batch = batch.map_err(|error| failed(error.to_string()))?;
            written = written.and_then(|()| write_rows(&mut file, &batch));
        }
        let written = written.and_then(|()| file.flush());
        written.map_err(|error| failed(error.to_string()))
    }
}

fn write_rows(file: &mut impl Write, batch: &Batch) -> io::Result<()> {
    let index = |tensor: &HostTensor| tensor.values::<i32>().unwrap_or_default();
    let pairs = index(&batch.x[0]).into_iter().zip(index(&batch.x[1]));
    for ((user, item), clicked) in pairs.zip(batch.y[0].f32s()) {
        writeln!(file, "{user},{item},{clicked}")?;
    }
    Ok(())
}
