//! Profiles that TensorBoard's profiler plug-in reads: what each machine did when, as an `XSpace` message
//! (`tsl/profiler/protobuf/xplane.proto`) for each of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::SummaryError;
use crate::message::Message;

/// Something that was done for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileSpan {
    /// What was done.
    pub name: String,
    /// When it began, from the start of the profile.
    pub begin: Duration,
    /// How long it took.
    pub length: Duration,
    /// The training step that it belongs to.
    pub step: i64,
}

/// What one thread or one group of devices did, one span after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileLine {
    /// Who did it.
    pub name: String,
    /// What it did.
    pub spans: Vec<ProfileSpan>,
}

/// What one machine did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostProfile {
    /// The name of the machine, which becomes the name of a file.
    pub host: String,
    /// What it did.
    pub lines: Vec<ProfileLine>,
}

/// Writes a profile to the folder of a TensorBoard run, `plugins/profile/NAME` in it. Returns the folder of the profile.
///
/// # Errors
/// [`SummaryError::Io`]: the file system refuses.
pub fn write_profile(
    run: &Path,
    name: &str,
    hosts: &[HostProfile],
) -> Result<PathBuf, SummaryError> {
    let folder = run.join("plugins").join("profile").join(name);
    let refused = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| SummaryError::Io {
            path,
            action,
            source,
        }
    };
    fs::create_dir_all(&folder).map_err(refused("create", &folder))?;
    for host in hosts {
        let path = folder.join(format!("{}.xplane.pb", host.host));
        fs::write(&path, host.to_bytes()).map_err(refused("write", &path))?;
    }
    Ok(folder)
}

/// The number of the one statistic that spans have.
const STEP: u64 = 1;

impl HostProfile {
    /// The `XSpace` of the machine: one plane, whose lines have events, and these the numbers of their names.
    fn to_bytes(&self) -> Vec<u8> {
        let spans = self.lines.iter().flat_map(|line| &line.spans);
        let mut names: Vec<&str> = spans.map(|span| span.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        Message::of(|space| {
            space.message(1, |plane| {
                plane.integer(1, 1);
                // The plane that the plug-in takes for the threads of a machine.
                plane.text(2, "/host:CPU");
                for (line, id) in self.lines.iter().zip(1..) {
                    plane.message(3, |message| line.write(message, id, &names));
                }
                for (name, id) in names.iter().zip(1..) {
                    plane.message(4, |entry| named(entry, id, name));
                }
                plane.message(5, |entry| named(entry, STEP, "step_num"));
            });
            space.text(4, &self.host);
        })
    }
}

/// An entry of a map from numbers to things with a name.
fn named(entry: &mut Message, id: u64, name: &str) {
    entry.integer(1, id);
    entry.message(2, |thing| {
        thing.integer(1, id);
        thing.text(2, name);
    });
}

impl ProfileLine {
    /// Times are from the start of the profile, as the profilers of TensorFlow and JAX leave them.
    fn write(&self, line: &mut Message, id: u64, names: &[&str]) {
        line.integer(1, id);
        line.text(2, &self.name);
        line.integer(3, 0);
        for span in &self.spans {
            let name = names.partition_point(|name| **name < *span.name) as u64 + 1;
            line.message(4, |event| {
                event.integer(1, name);
                event.integer(2, picoseconds(span.begin));
                event.integer(3, picoseconds(span.length));
                event.message(4, |step| {
                    step.integer(1, STEP);
                    step.integer(4, span.step.cast_unsigned());
                });
            });
        }
    }
}

fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Fields, Wire};

    fn all<'a>(message: &'a [u8], number: u64) -> Vec<Wire<'a>> {
        let fields = Fields::of(message).filter(|(other, _)| *other == number);
        fields.map(|(_, value)| value).collect()
    }

    #[test]
    fn spans_are_events_with_the_numbers_of_their_names() {
        let span = |name: &str, begin, step| ProfileSpan {
            name: name.into(),
            begin: Duration::from_micros(begin),
            length: Duration::from_micros(5),
            step,
        };
        let host = HostProfile {
            host: "worker-0".into(),
            lines: vec![
                ProfileLine {
                    name: "host".into(),
                    spans: vec![span("transfer", 1, 7), span("input", 6, 8)],
                },
                ProfileLine {
                    name: "devices".into(),
                    spans: vec![span("step", 2, 7)],
                },
            ],
        };
        let bytes = host.to_bytes();
        assert_eq!(all(&bytes, 4)[0].text(), "worker-0");
        let plane = all(&bytes, 1)[0].bytes();
        assert_eq!(all(plane, 2)[0].text(), "/host:CPU");
        let lines = all(plane, 3);
        let names = lines.iter().map(|line| all(line.bytes(), 2)[0].text());
        assert_eq!(names.collect::<Vec<_>>(), ["host", "devices"]);
        let name_of = |id: u64| {
            let entries = all(plane, 4).into_iter();
            let entry = entries
                .map(Wire::bytes)
                .find(|entry| all(entry, 1)[0].integer() == id);
            all(all(entry.unwrap(), 2)[0].bytes(), 2)[0].text()
        };
        let line = lines[0].bytes();
        assert_eq!(all(line, 3)[0].integer(), 0);
        let event = |index: usize| {
            let event = all(line, 4)[index].bytes();
            let step = all(all(event, 4)[0].bytes(), 4)[0].integer();
            let number = |field| all(event, field)[0].integer();
            (name_of(number(1)), number(2), number(3), step)
        };
        assert_eq!(event(0), ("transfer".into(), 1_000_000, 5_000_000, 7));
        assert_eq!(event(1), ("input".into(), 6_000_000, 5_000_000, 8));
    }
}
