//! Saves that fail, crash or are done on other disks.

use std::mem::ManuallyDrop;

use super::*;

const MODEL: &str = "model.json";
const MODEL_DIR: DirectoryKind = DirectoryKind {
    what: "saved model",
    short: "model",
    writer: "save",
    example: "digits.phx",
    files: &[MODEL, WEIGHTS],
    is_ours: |text| text.starts_with(b"{\"format\": \"phalanx model\""),
};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("phalanx-folder-{process}-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fill(staging: &StagingDir<'_>, text: &str) -> Result<()> {
    let ours = r#"{"format": "phalanx model"}"#;
    staging.write(MODEL, 0, |file| file.write_all(ours.as_bytes()))?;
    staging.write(WEIGHTS, 0, |file| file.write_all(text.as_bytes()))
}

#[test]
fn a_save_that_fails_half_way_leaves_the_old_and_nothing_else() {
    let scratch = Scratch::new("half");
    let path = scratch.0.join("m");
    MODEL_DIR
        .replace(&path, 0, |staging| fill(staging, "old"))
        .unwrap();
    let full = |staging: &StagingDir<'_>| {
        staging.write(MODEL, 0, |file| file.write_all(b"new"))?;
        staging.write(WEIGHTS, 0, |_| Err(io::ErrorKind::StorageFull.into()))
    };
    let error = MODEL_DIR.replace(&path, 0, full).unwrap_err().to_string();
    assert!(error.starts_with("cannot write "), "{error}");
    assert_eq!(fs::read(path.join(WEIGHTS)).unwrap(), b"old");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

#[test]
fn what_appears_while_a_save_runs_is_not_replaced() {
    let scratch = Scratch::new("appears");
    let path = scratch.0.join("m");
    let slow = |staging: &StagingDir<'_>| {
        fill(staging, "new")?;
        fs::create_dir(&path).unwrap();
        fs::write(path.join("thesis"), "mine").unwrap();
        Ok(())
    };
    let error = MODEL_DIR.replace(&path, 0, slow).unwrap_err().to_string();
    assert!(error.contains("`thesis`"), "{error}");
    assert_eq!(fs::read(path.join("thesis")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

/// A file system whose names cannot be exchanged.
fn publish_by_renames(path: &Path, text: &str) -> Result<()> {
    replaced_by_renames(path, text).map(drop)
}

fn replaced_by_renames(path: &Path, text: &str) -> Result<Replaced> {
    let disk = Disk {
        exchange: |_, _| Err(io::ErrorKind::Unsupported.into()),
        ..DISK
    };
    MODEL_DIR.replace_on(&disk, path, 0, |staging| fill(staging, text), &|| Ok(()))
}

#[test]
fn a_kill_while_the_old_one_is_removed_is_in_nobodys_way() {
    let scratch = Scratch::new("half-removed");
    let path = scratch.0.join("m");
    publish_by_renames(&path, "one").unwrap();
    // Whoever is killed drops nothing.
    let replaced = ManuallyDrop::new(replaced_by_renames(&path, "two").unwrap());
    let Replaced::Folder(old, files) = &*replaced else {
        panic!("something was replaced");
    };
    assert_ne!(*old, scratch.0.join(".m.before"));
    // Its first file tells what it was.
    fs::remove_file(old.join(files[0])).unwrap();
    publish_by_renames(&path, "three").unwrap();
}

#[test]
fn a_crash_between_two_renames_loses_nothing() {
    let scratch = Scratch::new("renames");
    let path = scratch.0.join("m");
    let weights = |path: &Path| MODEL_DIR.open(path, |files| files.file(WEIGHTS)?.contents());
    publish_by_renames(&path, "one").unwrap();
    publish_by_renames(&path, "two").unwrap();
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    for crashes in 0..2 {
        // The state after the first of the two renames.
        fs::rename(&path, scratch.0.join(".m.before")).unwrap();
        assert!(MODEL_DIR.is_there(&path));
        assert_eq!(weights(&path).unwrap(), b"two", "{crashes}");
        // A save that fails leaves it, too.
        let full = |staging: &StagingDir<'_>| {
            staging.write(WEIGHTS, 0, |_| Err(io::ErrorKind::StorageFull.into()))
        };
        assert!(MODEL_DIR.replace(&path, 0, full).is_err());
        assert_eq!(weights(&path).unwrap(), b"two", "{crashes}");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }
    MODEL_DIR.discard(&path).unwrap();
    assert!(!MODEL_DIR.is_there(&path));
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
    MODEL_DIR.discard(&path).unwrap();
    // What is not ours stays.
    fs::create_dir(&path).unwrap();
    fs::write(path.join("thesis"), "mine").unwrap();
    MODEL_DIR.discard(&path).unwrap();
    assert!(path.join("thesis").exists());
}

#[test]
fn a_save_that_ends_while_the_backup_is_opened_is_seen() {
    let scratch = Scratch::new("between");
    let path = scratch.0.join("m");
    publish_by_renames(&path, "one").unwrap();
    let backup = scratch.0.join(".m.before");
    fs::rename(&path, &backup).unwrap();
    let tries = std::cell::Cell::new(0);
    let read = MODEL_DIR.open(&path, |files| {
        if tries.replace(tries.get() + 1) == 0 {
            fs::rename(&backup, &path).unwrap();
        }
        files.file(WEIGHTS)?.contents()
    });
    assert_eq!(read.unwrap(), b"one");
}

/// As on a network file system, where a file that is open stays when it is removed.
#[test]
fn what_was_hidden_and_is_still_there_is_in_no_saves_way() {
    let scratch = Scratch::new("hidden");
    let path = scratch.0.join("m");
    let save = |text: &str| MODEL_DIR.replace(&path, 1, |staging| fill(staging, text));
    save("one").unwrap();
    save("two").unwrap();
    let name = format!(".m{STAGING}{}-0-removed", this_process());
    let hidden = scratch.0.join(name);
    fs::create_dir(&hidden).unwrap();
    fs::write(hidden.join(".nfs0001"), "open").unwrap();
    save("three").unwrap();
    assert_eq!(fs::read(path.join(WEIGHTS)).unwrap(), b"three");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 3);
}

/// File systems give the number of a removed directory to the next one.
#[test]
fn a_directory_that_comes_in_the_place_of_a_removed_one_is_another() {
    let scratch = Scratch::new("number");
    let path = scratch.0.join("m");
    let save = |text: &str| MODEL_DIR.replace(&path, 0, |staging| fill(staging, text));
    save("old").unwrap();
    let tries = std::cell::Cell::new(0);
    let read = MODEL_DIR.open(&path, |files| {
        let first = files.file(WEIGHTS)?.contents()?;
        if tries.replace(tries.get() + 1) == 0 {
            fs::remove_dir_all(&path).unwrap();
            save("new")?;
        }
        Ok([first, files.file(WEIGHTS)?.contents()?])
    });
    assert_eq!(read.unwrap(), [b"new", b"new"]);
}

#[test]
fn older_ones_stay_beside_it() {
    let scratch = Scratch::new("older");
    let path = scratch.0.join("m");
    let weights = |path: &Path| fs::read_to_string(path.join(WEIGHTS)).unwrap();
    for number in 0..5 {
        let text = number.to_string();
        MODEL_DIR
            .replace(&path, 2, |staging| fill(staging, &text))
            .unwrap();
    }
    let older = MODEL_DIR.older(&path);
    assert_eq!(older, [scratch.0.join("m.1"), scratch.0.join("m.2")]);
    assert_eq!(weights(&path), "4");
    assert_eq!([weights(&older[0]), weights(&older[1])], ["3", "2"]);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 3);
    fs::remove_dir_all(&path).unwrap();
    assert!(MODEL_DIR.is_there(&path));
    MODEL_DIR.discard(&path).unwrap();
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
    // What has such a name and is not ours is left alone, and the save refused before it begins.
    fs::write(scratch.0.join("m.1"), "mine").unwrap();
    let fills = MODEL_DIR.replace(&path, 2, |_| panic!("nothing is written"));
    assert!(fills.unwrap_err().to_string().contains("is no directory"));
    assert!(MODEL_DIR.older(&path).is_empty());
}

#[test]
fn as_many_older_ones_stay_as_can_be_counted() {
    let scratch = Scratch::new("all");
    let path = scratch.0.join("m");
    let save = |text: &str| MODEL_DIR.replace(&path, usize::MAX - 1, |staging| fill(staging, text));
    let weights = |path: &Path| fs::read_to_string(path.join(WEIGHTS)).unwrap();
    let older = || -> Vec<(String, String)> {
        let older = MODEL_DIR.older(&path).into_iter();
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        older.map(|path| (name(&path), weights(&path))).collect()
    };
    let named = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        let all = all.iter();
        all.map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    };
    for text in ["one", "two", "three", "four"] {
        save(text).unwrap();
    }
    assert_eq!(
        older(),
        named(&[("m.1", "three"), ("m.2", "two"), ("m.3", "one")])
    );
    // Those behind a gap stay where they are.
    fs::remove_dir_all(scratch.0.join("m.2")).unwrap();
    save("five").unwrap();
    assert_eq!(
        older(),
        named(&[("m.1", "four"), ("m.2", "three"), ("m.3", "one")])
    );
    // It is no older one, and a later number is looked at too.
    fs::create_dir(scratch.0.join("m.04")).unwrap();
    fs::write(scratch.0.join("m.12345"), "mine").unwrap();
    let error = save("six").unwrap_err().to_string();
    assert!(error.contains("m.12345"), "{error}");
}

/// Every file, the directory they are in, and then the one it gets its name in.
#[test]
fn a_save_is_on_disk_when_it_returns() {
    thread_local! {
        static SYNCED: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let disk = Disk {
        sync: |path, _| {
            let name = path.file_name().unwrap().to_string_lossy();
            let what = match path.join("m").exists() {
                true => "the parent",
                false if path.is_dir() => "the staging directory",
                false => &*name,
            };
            SYNCED.with_borrow_mut(|synced| synced.push(what.to_owned()));
            Ok(())
        },
        ..DISK
    };
    let scratch = Scratch::new("synced");
    let path = scratch.0.join("m");
    let replaced =
        MODEL_DIR.replace_on(&disk, &path, 0, |staging| fill(staging, "one"), &|| Ok(()));
    drop(replaced.unwrap());
    let expected = [MODEL, WEIGHTS, "the staging directory", "the parent"];
    assert_eq!(SYNCED.take(), expected);
}

#[test]
fn what_may_not_be_published_leaves_the_old() {
    let scratch = Scratch::new("refused");
    let path = scratch.0.join("m");
    let save = |text: &str, may_publish: &dyn Fn() -> Result<()>| {
        MODEL_DIR.replace_if(&path, 0, |staging| fill(staging, text), may_publish)
    };
    drop(save("old", &|| Ok(())).unwrap());
    let refused = save("new", &|| Err(Error::user("another has it")));
    assert!(refused.unwrap_err().to_string().contains("another has it"));
    assert_eq!(fs::read(path.join(WEIGHTS)).unwrap(), b"old");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

#[test]
fn a_disk_that_fails_after_the_exchange_loses_neither() {
    let scratch = Scratch::new("unsynced");
    let path = scratch.0.join("m");
    let save = |disk: &Disk, text: &str| {
        MODEL_DIR.replace_on(disk, &path, 0, |staging| fill(staging, text), &|| Ok(()))
    };
    drop(save(&DISK, "old").unwrap());
    let failing = Disk {
        sync: |path, file| match path.join("m").exists() {
            true => Err(io::Error::other("no answer")),
            false => file.sync_all(),
        },
        ..DISK
    };
    assert!(
        save(&failing, "new")
            .unwrap_err()
            .to_string()
            .contains("no answer")
    );
    let mut texts: Vec<String> = fs::read_dir(&scratch.0)
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path().join(WEIGHTS)).unwrap())
        .collect();
    texts.sort();
    assert_eq!(texts, ["new", "old"]);
}
