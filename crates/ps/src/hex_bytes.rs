//! Maps of bytes in snapshots: as hexadecimal digits, a third of what lists of numbers take.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

pub(crate) fn serialize<K: Serialize, S: Serializer>(
    map: &BTreeMap<K, Vec<u8>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let digits = |bytes: &Vec<u8>| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    let entries = map.iter().map(|(key, bytes)| (key, digits(bytes)));
    serializer.collect_map(entries)
}

pub(crate) fn deserialize<'de, K: Deserialize<'de> + Ord, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<K, Vec<u8>>, D::Error> {
    let texts = BTreeMap::<K, String>::deserialize(deserializer)?;
    let bytes = |text: &str| {
        let digit = |at: usize| {
            text.get(at..at + 2)
                .and_then(|d| u8::from_str_radix(d, 16).ok())
        };
        let bytes = (0..text.len()).step_by(2).map(digit);
        bytes.collect::<Option<Vec<u8>>>()
    };
    texts
        .into_iter()
        .map(|(key, text)| {
            let bytes = bytes(&text).ok_or_else(|| D::Error::custom("bytes that are no digits"))?;
            Ok((key, bytes))
        })
        .collect()
}
