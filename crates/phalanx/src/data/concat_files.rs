//! Arrays of several files as one, examples along the first dim.

use phalanx_graph::{AlignedBytes, HostTensor, Shape};

use crate::{Error, Result};

/// The arrays of a file, with its name.
pub(super) type FileArrays = (String, Vec<HostTensor>);

/// The rows of all files, one file after the other.
///
/// # Errors
/// When a file has another number of arrays than the first file, or arrays of another element type or row shape.
pub(super) fn concat_rows(mut parts: Vec<FileArrays>) -> Result<Vec<HostTensor>> {
    if parts.len() == 1 {
        return Ok(parts.remove(0).1);
    }
    let count = parts.first().map_or(0, |(_, first)| first.len());
    (0..count).map(|t| column(&parts, t)).collect()
}

fn column(parts: &[FileArrays], t: usize) -> Result<HostTensor> {
    let (first_name, first) = &parts[0];
    let first = &first[t];
    let kind = |tensor: &HostTensor| {
        (
            tensor.dtype(),
            tensor.dims().get(1..).map(<[usize]>::to_vec),
        )
    };
    let mut rows = 0;
    for (name, tensors) in parts {
        let tensor = tensors.get(t);
        if tensor.map(kind) != Some(kind(first)) || first.dims().is_empty() {
            let found =
                tensor.map_or_else(|| "nothing".into(), |tensor| tensor.shape().to_string());
            return Err(Error::Data {
                source_name: name.clone(),
                place: format!("array {t}"),
                message: format!(
                    "found {found}, expected rows as in {first_name}, {}; give files of the same columns, or narrow the pattern",
                    first.shape()
                ),
            });
        }
        rows += tensor.map_or(0, HostTensor::rows);
    }
    let dims = [&[rows], &first.dims()[1..]].concat();
    let shape = Shape::new(first.dtype(), dims);
    let mut bytes = AlignedBytes::zeroed(shape.byte_len());
    let mut at = 0;
    for (_, tensors) in parts {
        let part = tensors[t].bytes();
        bytes.as_mut_slice()[at..][..part.len()].copy_from_slice(part);
        at += part.len();
    }
    Ok(HostTensor::from_aligned(shape, bytes))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{CsvColumn, CsvOptions, Dataset, LabelColumn, read_idx, test_folder};
    use super::*;

    fn pattern(folder: &std::path::Path, name: &str) -> PathBuf {
        folder.join(name)
    }

    #[test]
    fn csv_files_by_pattern_are_one_dataset() {
        let folder = test_folder::create("csv_pattern");
        std::fs::write(folder.join("b.csv"), "a,b,label\n5,6,1\n").unwrap();
        std::fs::write(folder.join("a.csv"), "a,b,label\n1,2,0\n3,4,2\n").unwrap();
        let options = CsvOptions::default();
        let data = Dataset::from_csv(pattern(&folder, "?.csv"), &options).unwrap();
        let batch = data.batch(3).get(0, 0).unwrap();
        assert_eq!(
            batch.x[0],
            HostTensor::new([3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])
        );
        assert_eq!(batch.y[0], HostTensor::new([3], &[0i32, 2, 1]));
        let weights = HostTensor::new([3], &[1.0f32; 3]);
        assert!(
            data.with_weights(&weights).is_ok(),
            "it is an array in memory"
        );
        let few = CsvOptions {
            max_rows: 2,
            ..options.clone()
        };
        std::fs::write(folder.join("c.csv"), "1,2,3,0\n").unwrap();
        std::fs::write(folder.join("c[1].csv"), "7,8,0\n").unwrap();
        std::fs::write(folder.join("d.csv"), "b,a,label\n6,5,1\n").unwrap();
        std::fs::write(folder.join("e.csv"), "a,b,label,more\n6,5,1,2\n").unwrap();
        for (name, options, expected) in [
            ("[ab].csv", &few, "more than 2 rows"),
            (
                "[ad].csv",
                &options,
                "d.csv: header, column 1: found \"b\", expected \"a\" as in",
            ),
            (
                "[ae].csv",
                &options,
                "e.csv: header, column 4: found \"more\", expected nothing as in",
            ),
            (
                "[abc]*.csv",
                &options,
                "c.csv: array 0: found f32[1,3], expected rows as in",
            ),
            ("*.txt", &options, "names no file"),
            ("f.csv", &options, "cannot open"),
        ] {
            let error = Dataset::from_csv(pattern(&folder, name), options)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
        // The name of a file that looks like a pattern.
        let odd = Dataset::from_csv(pattern(&folder, "c[1].csv"), &options).unwrap();
        assert_eq!(
            odd.get(0, 0).unwrap().x[0],
            HostTensor::new([2], &[7.0f32, 8.0])
        );
    }

    #[test]
    fn columns_by_name_may_be_anywhere_and_others_may_not() {
        let folder = test_folder::create("csv_by_name");
        for (name, text) in [
            ("a.csv", "a,b,label\n1,2,0\n3,4,2\n"),
            ("d.csv", "b,a,label\n6,5,1\n"),
            ("e.csv", "a,b,label,more\n6,5,1,2\n"),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let named = CsvOptions {
            label: LabelColumn::Name("label".into()),
            columns: vec![CsvColumn::Name("a".into())],
            weight: Some(CsvColumn::Name("b".into())),
            ..CsvOptions::default()
        };
        let data = Dataset::from_csv(pattern(&folder, "[ade].csv"), &named).unwrap();
        let batch = data.batch(9).get(0, 0).unwrap();
        assert_eq!(batch.x[0].f32s(), [1.0, 3.0, 5.0, 6.0]);
        assert_eq!(batch.weight.unwrap().f32s(), [2.0, 4.0, 6.0, 5.0]);
        let last = CsvOptions {
            label: LabelColumn::Last,
            ..named
        };
        let error = Dataset::from_csv(pattern(&folder, "[ae].csv"), &last).unwrap_err();
        assert!(error.to_string().contains("found \"more\""), "{error}");
        let twice = CsvOptions {
            columns: vec![CsvColumn::Index(1), CsvColumn::Index(1)],
            indices: vec![CsvColumn::Index(1)],
            ..CsvOptions::default()
        };
        let error = Dataset::from_csv(pattern(&folder, "a.csv"), &twice).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("column 2 is among the columns of the features twice")
        );
    }

    #[test]
    fn idx_files_by_pattern_are_one_array() {
        let folder = test_folder::create("idx_pattern");
        for (name, values) in [
            ("1-labels", &[1u8, 2][..]),
            ("2-labels", &[3]),
            ("1-images", &[4, 5]),
            ("2-images", &[6]),
        ] {
            let file = [&[0, 0, 8, 1, 0, 0, 0, values.len() as u8], values].concat();
            std::fs::write(folder.join(name), file).unwrap();
        }
        assert_eq!(
            read_idx(pattern(&folder, "*-images"), 3).unwrap(),
            HostTensor::new([3], &[4u8, 5, 6])
        );
        let error = read_idx(pattern(&folder, "*-images"), 2)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("2-images: byte 4") && error.contains("larger than 0"),
            "{error}"
        );
        let data =
            Dataset::from_idx(pattern(&folder, "*-images"), pattern(&folder, "*-labels")).unwrap();
        assert_eq!(data.get(0, 2).unwrap().y[0], HostTensor::scalar(3i32));
        // A number that is no class: 0.5 as f32.
        let half = [0, 0, 0x0d, 1, 0, 0, 0, 1, 0x3f, 0, 0, 0];
        std::fs::write(folder.join("half"), half).unwrap();
        std::fs::write(folder.join("one"), [0, 0, 8, 1, 0, 0, 0, 1, 7]).unwrap();
        let error = Dataset::from_idx(folder.join("one"), folder.join("half")).unwrap_err();
        assert!(
            error.to_string().contains("label 0 of the IDX file is 0.5"),
            "{error}"
        );
        std::fs::write(
            folder.join("3-images"),
            [0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 1, 9],
        )
        .unwrap();
        let error = read_idx(pattern(&folder, "*-images"), 9)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("3-images: array 0: found u8[1,1]"),
            "{error}"
        );
    }
}
