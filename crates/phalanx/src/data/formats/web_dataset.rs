//! WebDataset: tar files whose neighbouring members with one key are a sample.
//!
//! The key of a member is its path up to the first dot of the file name; what follows is the field. Plain tar as POSIX
//! (ustar, pax) and GNU write it; a compressed file is refused.

use std::collections::BTreeMap;

use super::files::{InputFile, files_matching, firsts, locate, past_the_end};
use super::tar::{TarMember, TarReader};
use super::{RecordLocation, Records};
use crate::Result;

/// The samples of tar files, one file after the other.
#[derive(Debug)]
pub struct WebDataset {
    files: Vec<(InputFile, Vec<SampleIndex>)>,
    firsts: Vec<usize>,
    len: usize,
}

/// A sample: its key, and the bytes of each field by name (`jpg`, `cls`, `seg.png`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSample {
    /// The path in the tar file up to the first dot of the file name.
    pub key: String,
    /// The fields, in lower case.
    pub fields: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug)]
struct SampleIndex {
    key: String,
    /// Field, offset and size.
    fields: Vec<(String, u64, u64)>,
}

impl WebDataset {
    /// The files that a pattern names; no member has more than `max_member` bytes.
    ///
    /// # Errors
    /// As [`files_matching`], when a file cannot be read, is no plain tar file, or has a sample with a field twice.
    pub fn open(pattern: &str, max_member: u64) -> Result<Self> {
        let mut files = Vec::new();
        for file in InputFile::open_all(files_matching(pattern)?)? {
            let samples = samples(&file, max_member)?;
            files.push((file, samples));
        }
        let counts = files.iter().map(|(_, samples)| samples.len());
        let (len, firsts) = (counts.clone().sum(), firsts(counts));
        Ok(Self { files, firsts, len })
    }
}

fn samples(file: &InputFile, max_member: u64) -> Result<Vec<SampleIndex>> {
    let mut samples: Vec<SampleIndex> = Vec::new();
    let read = |bytes: &mut [u8], offset| file.read_at(bytes, offset);
    for member in TarReader::new(file.len(), read) {
        let member = member?.map_err(|(offset, message)| file.corrupt(offset, &message))?;
        if member.size > max_member {
            let message = format!(
                "member `{}` has {} bytes, the most accepted is {max_member}; raise max_member",
                member.path, member.size
            );
            return Err(file.corrupt(member.offset, &message));
        }
        add(file, &member, &mut samples)?;
    }
    Ok(samples)
}

fn add(file: &InputFile, member: &TarMember, samples: &mut Vec<SampleIndex>) -> Result<()> {
    let Some((key, field)) = key_and_field(&member.path) else {
        return Ok(());
    };
    let place = (field.to_lowercase(), member.offset, member.size);
    match samples.last_mut().filter(|sample| sample.key == key) {
        Some(sample) if sample.fields.iter().any(|(other, ..)| *other == place.0) => {
            let message = format!(
                "sample `{key}` has the field `{}` twice; write the file again with one key a sample",
                place.0
            );
            return Err(file.corrupt(member.offset, &message));
        }
        Some(sample) => sample.fields.push(place),
        None => samples.push(SampleIndex {
            key: key.to_owned(),
            fields: vec![place],
        }),
    }
    Ok(())
}

/// `a/b.seg.png` is `a/b` and `seg.png`; a name without a dot, or a hidden file, is no part of a sample.
fn key_and_field(path: &str) -> Option<(&str, &str)> {
    let name = path.rfind('/').map_or(0, |slash| slash + 1);
    let dot = name + path[name..].find('.')?;
    (dot > name).then(|| (&path[..dot], &path[dot + 1..]))
}

impl Records for WebDataset {
    type Item = WebSample;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, i: usize) -> Result<WebSample> {
        if i >= self.len {
            return Err(past_the_end("sample", i, self.len));
        }
        let (at, i) = locate(&self.firsts, i);
        let (file, samples) = &self.files[at];
        let mut fields = BTreeMap::new();
        for (field, offset, size) in &samples[i].fields {
            let mut bytes = vec![0; *size as usize];
            file.read_at(&mut bytes, *offset)?;
            fields.insert(field.clone(), bytes);
        }
        let key = samples[i].key.clone();
        Ok(WebSample { key, fields })
    }

    fn per_file(&self) -> Vec<usize> {
        self.files
            .iter()
            .map(|(_, samples)| samples.len())
            .collect()
    }

    fn place(&self, i: usize) -> RecordLocation {
        let (file, i) = locate(&self.firsts, i);
        let (file, samples) = &self.files[file];
        let offset = samples[i]
            .fields
            .first()
            .map_or(0, |(_, offset, _)| *offset);
        RecordLocation {
            file: file.name(),
            place: format!("sample `{}` at byte {offset}", samples[i].key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::formats::tar::testing::{archive, member};
    use crate::data::test_folder;

    #[test]
    fn neighbours_with_one_key_are_a_sample() {
        let folder = test_folder::create("web");
        let members = [
            member("d/0001.JPG", b"image one"),
            member("d/0001.cls", b"3"),
            member("d/0002.seg.png", &[9; 600]),
            member("README", b"no sample"),
            member("d/0002.cls", b"4"),
        ];
        std::fs::write(folder.join("a.tar"), archive(&members)).unwrap();
        let path = folder.join("a.tar").to_string_lossy().into_owned();
        let samples = WebDataset::open(&path, 600).unwrap();
        assert_eq!((samples.len(), samples.per_file()), (2, vec![2]));
        let first = samples.get(0).unwrap();
        assert_eq!(
            (
                &*first.key,
                first
                    .fields
                    .keys()
                    .map(|field| &**field)
                    .collect::<Vec<_>>()
            ),
            ("d/0001", vec!["cls", "jpg"])
        );
        let second = samples.get(1).unwrap();
        assert_eq!(
            (&second.fields["seg.png"][..], &second.fields["cls"][..]),
            (&[9; 600][..], &b"4"[..])
        );
        assert_eq!(samples.place(1).place, "sample `d/0002` at byte 2560");
        let error = WebDataset::open(&path, 599).unwrap_err().to_string();
        assert!(
            error.contains("a.tar: byte 2560: member `d/0002.seg.png` has 600"),
            "{error}"
        );
        std::fs::write(&path, archive(&[member("a.x", b""), member("a.X", b"")])).unwrap();
        let error = WebDataset::open(&path, 600).unwrap_err().to_string();
        assert!(
            error.contains("sample `a` has the field `x` twice"),
            "{error}"
        );
    }
}
