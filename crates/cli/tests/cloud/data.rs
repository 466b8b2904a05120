//! Data and models in buckets.

use std::fs;
use std::path::{Path, PathBuf};

use phalanx_pjrt::PluginSearch;
use phalanx_store::StoreError;
use phalanx_testkit::{Answer, Gate, bucket_urls, put_empty_at};

use super::{Folder, bucket, server, told};

/// The copies of a URL, removed at the end.
struct Copies(PathBuf);

impl Copies {
    fn of(url: &str) -> Self {
        let cache = PluginSearch::from_process().cache_dir().unwrap();
        Self(cache.join("data").join(url.replacen("://", "/", 1)))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn put(url: &str, name: &str, contents: Vec<u8>) {
    let (url, bucket) = bucket(url);
    bucket.put(&url.join(name), contents).unwrap();
}

/// The first training file with other data.
fn with(folder: &Folder, name: &str, data: &str, more: &str) -> String {
    folder.describe(name, more);
    let file = format!("{name}.yaml");
    let path = folder.0.join(&file);
    let text = fs::read_to_string(&path).unwrap();
    let (before, after) = text.split_once('\n').unwrap();
    assert!(before.starts_with("data: "));
    fs::write(path, format!("data: {data}\n{after}")).unwrap();
    file
}

#[test]
fn files_in_a_bucket_train_as_they_do_here_and_are_copied_once() {
    let folder = Folder::new("data");
    let rows = fs::read_to_string(folder.0.join("a.csv")).unwrap();
    let lines: Vec<&str> = rows.lines().collect();
    let part = |lines: &[&str]| (lines.join("\n") + "\n").into_bytes();
    for (number, url) in bucket_urls("data").into_iter().enumerate() {
        let _copies = Copies::of(&url);
        put(&url, "train/part-0.csv", part(&lines[..25]));
        put(&url, "train/part-1.csv", part(&lines[25..]));
        put(&url, "train/notes.txt", b"no rows".to_vec());
        let train = |name: &str, data: &str| {
            let file = with(&folder, &format!("{name}{number}"), data, "");
            folder.run(&["train", &file, "--overwrite"], 0)
        };
        let pattern = format!("{{csv: \"{url}/train/part-*.csv\", divide_by: 10}}");
        let said = train("remote", &pattern);
        assert!(
            said.contains("copying") && said.contains(": 2 files, "),
            "{said}"
        );
        train("local", "{csv: a.csv, divide_by: 10}");
        let model = |name: &str| folder.model(&format!("{name}{number}"));
        assert_eq!(model("remote"), model("local"));
        assert!(!train("remote", &pattern).contains("copying"));
        // One that was changed, and one that is gone.
        put(&url, "train/part-1.csv", part(&lines[30..]));
        let said = train("remote", &pattern);
        assert!(
            said.contains(": 1 file, ") && said.contains("data: 35 examples"),
            "{said}"
        );
        let (of_url, bucket) = bucket(&url);
        bucket.remove(&of_url.join("train/part-0.csv")).unwrap();
        let said = train("remote", &pattern);
        assert!(
            !said.contains("copying") && said.contains("data: 10 examples"),
            "{said}"
        );
        // What was an object becomes a prefix.
        put(&url, "changed", b"1,2,0\n2,1,1\n".to_vec());
        train("changed", &format!("{{csv: \"{url}/changed\"}}"));
        bucket.remove(&of_url.join("changed")).unwrap();
        put(&url, "changed/a.csv", part(&lines));
        train("changed", &format!("{{csv: \"{url}/changed/*.csv\"}}"));
        let one = format!("{url}/train/part-1.csv");
        let run = format!("remote{number}");
        let evaluated = folder.run(&["evaluate", &run, &one], 0);
        fs::write(folder.0.join("part.csv"), part(&lines[30..])).unwrap();
        assert_eq!(evaluated, folder.run(&["evaluate", &run, "part.csv"], 0));
    }
}

#[test]
fn workers_copy_together_and_models_come_from_buckets() {
    let folder = Folder::new("data-two");
    let rows = fs::read(folder.0.join("a.csv")).unwrap();
    folder.describe("first", "");
    folder.run(&["train", "first.yaml"], 0);
    folder.run(&["export", "first", "m.keras"], 0);
    for (number, url) in bucket_urls("data-two").into_iter().enumerate() {
        let _copies = Copies::of(&url);
        (0..6).for_each(|part| put(&url, &format!("rows/{part}.csv"), rows.clone()));
        put(&url, "m.keras", fs::read(folder.0.join("m.keras")).unwrap());
        let name = format!("two{number}");
        let data = format!("{{csv: \"{url}/rows/*.csv\", divide_by: 10}}");
        let file = with(&folder, &name, &data, "");
        let text = fs::read_to_string(folder.0.join(&file)).unwrap();
        let lines = text.lines().map(|line| match line.starts_with("model: ") {
            true => format!("model: {url}/m.keras\n"),
            false => format!("{line}\n"),
        });
        fs::write(folder.0.join(&file), lines.collect::<String>()).unwrap();
        let program = env!("CARGO_BIN_EXE_phalanx");
        let launch = ["launch", "--workers", "2", "--", program, "train", &file];
        let said = folder.run(&launch, 0);
        assert!(said.contains("data: 240 examples"), "{said}");
        assert!(said.contains("4 of 4 variables have values"), "{said}");
        let parts = Copies::of(&url)
            .0
            .ancestors()
            .nth(3)
            .map(|data| data.join(".parts"));
        let left = fs::read_dir(parts.unwrap()).map_or(0, Iterator::count);
        assert_eq!(left, 0, "what is not whole");
    }
}

#[test]
fn a_folder_of_images_comes_from_a_bucket() {
    let folder = Folder::new("data-images");
    let synth = "data synth --to pictures --classes 2 --count 12 --width 8 --height 8";
    folder.run(&synth.split(' ').collect::<Vec<_>>(), 0);
    for (number, url) in bucket_urls("data-images").into_iter().enumerate() {
        let _copies = Copies::of(&url);
        for class in fs::read_dir(folder.0.join("pictures")).unwrap() {
            for image in fs::read_dir(class.unwrap().path()).unwrap() {
                let path = image.unwrap().path();
                let name = path
                    .strip_prefix(&folder.0)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                put(&url, &name, fs::read(&path).unwrap());
            }
        }
        let train = |name: &str, images: &str| {
            let data = format!("{{image_folder: \"{images}\", image_size: [8, 8]}}");
            let file = with(&folder, &format!("{name}{number}"), &data, "");
            let text = fs::read_to_string(folder.0.join(&file)).unwrap();
            let text = text.replace("model: [", "model: [flatten, ");
            fs::write(folder.0.join(&file), text).unwrap();
            folder.run(&["train", &file], 0);
            folder.model(&format!("{name}{number}"))
        };
        assert_eq!(
            train("remote", &format!("{url}/pictures")),
            train("local", "pictures")
        );
    }
}

#[test]
fn a_single_object_travels_once_and_an_empty_one_is_found() {
    let folder = Folder::new("data-single");
    folder.describe("first", "");
    folder.run(&["train", "first.yaml"], 0);
    let rows = fs::read_to_string(folder.0.join("a.csv"))
        .unwrap()
        .repeat(500);
    for url in bucket_urls("data-single") {
        let _copies = Copies::of(&url);
        put(&url, "rows.csv", rows.clone().into_bytes());
        put(&url, "empty", Vec::new());
        let (variable, address) = server(&url);
        let gate = Gate::before(&address, |_| Answer::Pass);
        let mut command = folder.command(&["evaluate", "first", &format!("{url}/rows.csv")]);
        command.env(variable, &gate.address);
        told(&command.output().unwrap(), 0);
        let (answered, size) = (gate.answered(), rows.len() as u64);
        assert!(
            (size..size * 3 / 2).contains(&answered),
            "{answered} of {size}"
        );
        let (of_url, bucket) = bucket(&url);
        assert_eq!(bucket.stat(&of_url.join("rows.csv")).unwrap().size, size);
        assert_eq!(bucket.stat(&of_url.join("empty")).unwrap().size, 0);
        let absent = bucket.stat(&of_url.join("absent")).unwrap_err();
        assert!(matches!(absent, StoreError::Missing { .. }), "{absent}");
    }
}

#[test]
fn an_object_whose_name_cannot_be_used_is_named() {
    for url in bucket_urls("data-names") {
        if !url.starts_with("gs") {
            continue;
        }
        put_empty_at(&format!("{url}/a//b"));
        let (of_url, bucket) = bucket(&url);
        let error = bucket.list(&of_url).unwrap_err().to_string();
        let expected = "has an object whose name cannot be used";
        assert!(
            error.contains(expected) && error.contains("/a//b"),
            "{error}"
        );
    }
}

#[test]
fn what_is_not_in_a_bucket_is_said_at_its_line() {
    let folder = Folder::new("data-wrong");
    for url in bucket_urls("data-wrong") {
        let _copies = Copies::of(&url);
        for name in ["absent.csv", "absent/*.csv"] {
            let file = with(&folder, "wrong", &format!("{{csv: \"{url}/{name}\"}}"), "");
            let said = folder.run(&["train", &file], 2);
            let expected = format!("wrong.yaml:1:13: there is nothing at {url}/{name}; ");
            assert!(said.contains(&expected), "{said}");
        }
        let file = with(&folder, "wrong", "{csv: \"http://host/a.csv\"}", "");
        let said = told(&folder.command(&["train", &file]).output().unwrap(), 2);
        assert!(
            said.contains("`http://` is no store that is known here"),
            "{said}"
        );
        assert!(!Path::new(&folder.0).join("http:").exists());
    }
}
