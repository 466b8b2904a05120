//! The on-disk cache of compiled programs.
//!
//! An entry is a file named by the SHA-256 of everything that determines its contents: the plugin file, the processor's features, the number of
//! threads, the flags of `XLA_FLAGS`, the module, the options and the devices. It starts with a checksum; a damaged entry is compiled again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::client::Client;
use crate::compile::{CompileOptions, OverrideValue};
use crate::environment::xla_threads;
use crate::error::PjrtError;
use crate::executable::Executable;
use crate::install::{HeldLock, hex, sha256_of};
use crate::trust::check_folder;

const MAGIC: &[u8; 8] = b"phxexe1\n";
/// A temporary file that is older than this is of a writer that died.
const STALE: Duration = Duration::from_secs(3600);
/// How long a process waits for another that may be compiling the same program: it may have been stopped.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
const HEADER: usize = MAGIC.len() + 32;

/// A folder of compiled programs.
#[derive(Debug, Clone)]
pub struct CompileCache {
    dir: PathBuf,
    limit: u64,
}

/// What the cache did for one compilation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheOutcome {
    /// There is no cache.
    Off,
    /// The program was loaded.
    Hit,
    /// The program was compiled and stored.
    Stored,
    /// The entry was damaged; the program was compiled and stored again.
    Replaced,
    /// The program was compiled and could not be stored, for this reason.
    NotStored(String),
}

impl CompileCache {
    /// Default for the most bytes that a cache holds: 2 GiB.
    pub const DEFAULT_LIMIT: u64 = 2 << 30;

    /// Opens (and makes) a cache that holds at most `limit` bytes. Only this user may read it: entries are machine code.
    ///
    /// # Errors
    /// The folder cannot be made; it is another user's, or others may write to it.
    pub fn open(dir: impl Into<PathBuf>, limit: u64) -> io::Result<Self> {
        let dir = dir.into();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)?;
        check_folder(&dir).map_err(io::Error::other)?;
        Ok(Self { dir, limit })
    }

    /// The contents of an entry; `Some(Err)` if it is damaged.
    fn read(&self, key: &str) -> Option<Result<Vec<u8>, &'static str>> {
        let path = self.entry(key);
        let mut bytes = fs::read(&path).ok()?;
        let sound = bytes.len() >= HEADER
            && bytes[..MAGIC.len()] == *MAGIC
            && Sha256::digest(&bytes[HEADER..])[..] == bytes[MAGIC.len()..HEADER];
        if !sound {
            return Some(Err("wrong checksum"));
        }
        // The time of last use, which decides what goes first. Failing to set it costs a compilation later.
        let _ = File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Some(Ok(bytes.split_off(HEADER)))
    }

    fn write(&self, key: &str, payload: &[u8]) -> io::Result<()> {
        let digest = Sha256::digest(payload);
        write_atomically(&self.entry(key), &[MAGIC, &digest, payload])?;
        self.prune(key)
    }

    /// Removes the entries used longest ago until the rest fits, and never the one just written; and what writers that died left.
    fn prune(&self, keep: &str) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.dir)?.flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            let (path, changed) = (entry.path(), metadata.modified());
            let changed = changed.unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("exe") => entries.push((changed, metadata.len(), path)),
                Some("tmp") if changed.elapsed().is_ok_and(|age| age > STALE) => {
                    let _ = fs::remove_file(path);
                }
                _ => {}
            }
        }
        entries.sort();
        let mut total: u64 = entries.iter().map(|entry| entry.1).sum();
        for (_, size, path) in entries {
            if total > self.limit && path != self.entry(keep) && fs::remove_file(&path).is_ok() {
                total -= size;
            }
        }
        Ok(())
    }

    /// The turn to compile a program, until it is dropped: of the processes that start together on a machine one compiles, and the
    /// others find what it stored. `None` when that takes too long, or the folder has no locks: then each compiles.
    ///
    /// A lock is for all programs whose keys begin alike, so that there are 256 files and not one for each program.
    fn turn(&self, key: &str, longest: Duration) -> Option<HeldLock> {
        let path = self.dir.join(format!("{}.lock", &key[..2]));
        HeldLock::within(&path, longest).ok()?
    }

    fn entry(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}.exe"))
    }

    /// The SHA-256 of the plugin file, remembered by path, size and time of change: hashing 200 MB takes a while.
    fn plugin_hash(&self, path: &Path) -> io::Result<String> {
        let metadata = fs::metadata(path)?;
        let changed = metadata
            .modified()?
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        let state = format!("{} {} {changed}\n", path.display(), metadata.len());
        let memo = self.dir.join(format!(
            "plugin-{}.sha256",
            &hex(&Sha256::digest(path.as_os_str().as_encoded_bytes()))[..16]
        ));
        if let Some(hash) = fs::read_to_string(&memo)
            .ok()
            .and_then(|text| Some(text.strip_prefix(&state)?.to_owned()))
            && hash.len() == 64
        {
            return Ok(hash);
        }
        let hash = sha256_of(path)?;
        // It is counted again where it cannot be noted.
        let _ = write_atomically(&memo, &[state.as_bytes(), hash.as_bytes()]);
        Ok(hash)
    }
}

impl Client {
    /// Compiles like [`Client::compile`], but takes the program from the cache if it is there, and puts it there if not.
    ///
    /// Custom calls that the program uses must be registered before. Trouble with the cache is never an error: it is reported in the outcome.
    ///
    /// # Errors
    /// As for [`Client::compile`].
    pub fn compile_cached(
        &self,
        cache: Option<&CompileCache>,
        code: &str,
        options: &CompileOptions,
    ) -> Result<(Executable, CacheOutcome), PjrtError> {
        let Some(cache) = cache else {
            return Ok((self.compile(code, options)?, CacheOutcome::Off));
        };
        let key = match self.storable_key(cache, code, options)? {
            Ok(key) => key,
            Err(reason) => {
                let executable = self.compile(code, options)?;
                return Ok((executable, CacheOutcome::NotStored(reason)));
            }
        };
        if let Some(executable) = self.load(cache, &key) {
            return Ok((executable, CacheOutcome::Hit));
        }
        let turn = cache.turn(&key, LONGEST_WAIT);
        // Another may have stored it meanwhile.
        if let Some(executable) = self.load(cache, &key) {
            return Ok((executable, CacheOutcome::Hit));
        }
        let damaged = cache.entry(&key).exists();
        let executable = self.compile(code, options)?;
        let outcome = match executable.serialize() {
            Err(error) => CacheOutcome::NotStored(error.to_string()),
            Ok(bytes) => match cache.write(&key, &bytes) {
                Err(error) => CacheOutcome::NotStored(format!(
                    "cannot write to {}: {error}",
                    cache.dir.display()
                )),
                Ok(()) if damaged => CacheOutcome::Replaced,
                Ok(()) => CacheOutcome::Stored,
            },
        };
        drop(turn);
        Ok((executable, outcome))
    }

    /// The program of an entry that is there and sound.
    fn load(&self, cache: &CompileCache, key: &str) -> Option<Executable> {
        let bytes = cache.read(key)?.ok()?;
        // SAFETY: the bytes have the checksum that was written with them, into a folder to which only this user can write.
        unsafe { self.deserialize(&bytes) }.ok()
    }

    /// Whether the cache has an entry for a program, which [`compile_cached`](Self::compile_cached) would load.
    #[must_use]
    pub fn is_cached(&self, cache: &CompileCache, code: &str, options: &CompileOptions) -> bool {
        let key = self.storable_key(cache, code, options);
        matches!(key, Ok(Ok(key)) if cache.entry(&key).exists())
    }

    /// The key of a program, or why the cache cannot have it.
    fn storable_key(
        &self,
        cache: &CompileCache,
        code: &str,
        options: &CompileOptions,
    ) -> Result<Result<String, String>, PjrtError> {
        let flags = match xla_flags() {
            Ok(flags) => flags,
            Err(reason) => return Ok(Err(reason.clone())),
        };
        if let Some(reason) = unsafe_to_serialize(&options.overrides, flags) {
            return Ok(Err(reason));
        }
        let key = self.cache_key(cache, flags, code, options)?;
        Ok(key.map_err(|error| format!("cannot read the plugin file: {error}")))
    }

    fn cache_key(
        &self,
        cache: &CompileCache,
        flags: &str,
        code: &str,
        options: &CompileOptions,
    ) -> Result<io::Result<String>, PjrtError> {
        let encoded = options.encode()?;
        let plugin = match cache.plugin_hash(self.plugin().path()) {
            Ok(hash) => hash,
            Err(error) => return Ok(Err(error)),
        };
        let devices: Vec<String> = self
            .devices()
            .iter()
            .map(|device| format!("{} {}", device.id, device.kind))
            .collect();
        let processors =
            ["PJRT_NPROC", "NPROC"].map(|name| std::env::var(name).unwrap_or_default());
        let environment = format!("{flags}\0{}", processors.join("\0"));
        let threads = xla_threads().to_string();
        let parts = [
            plugin.as_bytes(),
            self.platform_version().as_bytes(),
            processor().as_bytes(),
            threads.as_bytes(),
            environment.as_bytes(),
            devices.join("\0").as_bytes(),
            &encoded,
            code.as_bytes(),
        ]
        .map(<[u8]>::to_vec);
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(&part);
        }
        Ok(Ok(hex(&hash.finalize())))
    }
}

/// The flags of `XLA_FLAGS` at the first look: the plugin reads them once, too.
fn xla_flags() -> &'static Result<String, String> {
    static FLAGS: OnceLock<Result<String, String>> = OnceLock::new();
    FLAGS.get_or_init(|| flags_of(&std::env::var_os("XLA_FLAGS").unwrap_or_default()))
}

/// The flags that a value of `XLA_FLAGS` gives: as for XLA (`xla/parse_flags_from_env.cc`), one that does not begin with `-` is the name of
/// a file with flags.
fn flags_of(value: &OsStr) -> Result<String, String> {
    let text = value.to_string_lossy();
    if text.is_empty() || text.trim_start().starts_with('-') {
        return Ok(text.into_owned());
    }
    let unread = |why: String| format!("cannot read {text}, the file of flags in XLA_FLAGS: {why}");
    // A pipe has nothing for a second reader, or keeps it waiting.
    if fs::metadata(value).is_ok_and(|found| !found.is_file()) {
        return Err(unread("it is no plain file".to_owned()));
    }
    let flags = fs::read(value).map_err(|error| unread(error.to_string()))?;
    Ok(String::from_utf8_lossy(&flags).into_owned())
}

/// Why the program must not be serialised: XLA ends the process when it serialises some programs that use oneDNN.
fn unsafe_to_serialize(overrides: &BTreeMap<String, OverrideValue>, flags: &str) -> Option<String> {
    let off = |value: &OverrideValue| match value {
        OverrideValue::Bool(value) => !value,
        OverrideValue::Text(text) => text.is_empty() || text.eq_ignore_ascii_case("false"),
        OverrideValue::Int(value) => *value == 0,
        OverrideValue::Float(_) => false,
    };
    if let Some((name, _)) = overrides
        .iter()
        .find(|(name, value)| name.contains("onednn") && !off(value))
    {
        return Some(format!("programs compiled with {name} cannot be stored"));
    }
    flags
        .contains("onednn")
        .then(|| "programs compiled with a onednn flag in XLA_FLAGS cannot be stored".into())
}

/// The lines of `/proc/cpuinfo` that decide which machine code runs here, of the first processor.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = text.split("\n\n").next().unwrap_or_default();
    let names = [
        "vendor_id",
        "cpu family",
        "model",
        "flags",
        "Features",
        "CPU implementer",
        "CPU part",
    ];
    let chosen = first
        .lines()
        .filter(|line| names.contains(&line.split(':').next().unwrap_or_default().trim()));
    chosen.collect::<Vec<_>>().join("\n")
}

/// Writes a temporary file and renames it, so that no reader sees half of it.
pub(crate) fn write_atomically(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let (temporary, mut file) = create_temporary(path)?;
    let written = (|| {
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A new file beside the path, under a name that no other process has: one on another machine, or one that died, may have the same number.
fn create_temporary(path: &Path) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
        match File::create_new(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return Ok((temporary, file?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn one_at_a_time_has_the_turn_to_compile_a_program() {
        let dir = TempDir::new();
        let cache = CompileCache::open(dir.join("c"), 1 << 20).unwrap();
        let turn = cache.turn("ab01", Duration::ZERO);
        assert!(turn.is_some());
        assert!(cache.turn("ab01", Duration::from_millis(30)).is_none());
        assert!(cache.turn("cd01", Duration::ZERO).is_some());
        drop(turn);
        assert!(cache.turn("ab01", Duration::ZERO).is_some());
    }

    #[test]
    fn a_turn_ends_where_processes_are_being_started() {
        let dir = TempDir::new();
        let cache = CompileCache::open(dir.join("c"), 1 << 20).unwrap();
        let started = std::thread::spawn(|| {
            for _ in 0..100 {
                std::process::Command::new("true").status().unwrap();
            }
        });
        while !started.is_finished() {
            assert!(cache.turn("ab01", Duration::ZERO).is_some());
        }
        started.join().unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused_and_what_writers_left_removed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = TempDir::new();
        let cache = CompileCache::open(dir.join("c"), 1 << 20).unwrap();
        let (old, new) = (dir.join("c/a.1-1.tmp"), dir.join("c/a.1-2.tmp"));
        fs::write(&old, "half").unwrap();
        fs::write(&new, "half").unwrap();
        let file = File::options().append(true).open(&old).unwrap();
        file.set_modified(SystemTime::now() - 2 * STALE).unwrap();
        cache.write("k", b"program").unwrap();
        assert_eq!((old.exists(), new.exists()), (false, true));
        fs::set_permissions(dir.join("c"), fs::Permissions::from_mode(0o770)).unwrap();
        let error = CompileCache::open(dir.join("c"), 1)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("can be written to by others (mode 770)"),
            "{error}"
        );
    }

    #[test]
    fn entries_round_trip_and_damage_is_seen() {
        let dir = TempDir::new();
        let cache = CompileCache::open(dir.join("c"), 1 << 20).unwrap();
        assert!(cache.read("k").is_none());
        cache.write("k", b"program").unwrap();
        assert_eq!(cache.read("k"), Some(Ok(b"program".to_vec())));
        let good = fs::read(cache.entry("k")).unwrap();
        for at in [0, 9, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(cache.entry("k"), bad).unwrap();
            assert!(cache.read("k").unwrap().is_err());
        }
        for length in [0, 7, 39, good.len() - 1] {
            fs::write(cache.entry("k"), &good[..length]).unwrap();
            assert!(cache.read("k").unwrap().is_err(), "{length}");
        }
    }

    #[test]
    fn the_entry_used_longest_ago_goes_first() {
        let dir = TempDir::new();
        let cache = CompileCache::open(dir.to_path_buf(), 350).unwrap();
        let age = |key: &str, seconds| {
            let time = SystemTime::now() - Duration::from_secs(seconds);
            File::options()
                .append(true)
                .open(cache.entry(key))
                .unwrap()
                .set_modified(time)
                .unwrap();
        };
        cache.write("a", &[0; 100]).unwrap();
        cache.write("b", &[0; 100]).unwrap();
        age("a", 100);
        age("b", 50);
        cache.read("a");
        cache.write("c", &[0; 100]).unwrap();
        assert!(
            cache.read("a").is_some() && cache.read("b").is_none() && cache.read("c").is_some()
        );
        cache.write("big", &[0; 1000]).unwrap();
        assert!(cache.read("a").is_none() && cache.read("big").is_some());
    }

    #[test]
    fn the_plugin_is_hashed_again_when_it_changes() {
        let dir = TempDir::new();
        let cache = CompileCache::open(dir.join("c"), 0).unwrap();
        let plugin = dir.join("p.so");
        fs::write(&plugin, "one").unwrap();
        let first = cache.plugin_hash(&plugin).unwrap();
        assert_eq!(first, cache.plugin_hash(&plugin).unwrap());
        fs::write(&plugin, "three").unwrap();
        assert_eq!(
            cache.plugin_hash(&plugin).unwrap(),
            sha256_of(&plugin).unwrap()
        );
        assert_ne!(cache.plugin_hash(&plugin).unwrap(), first);
    }

    #[test]
    fn a_note_that_cannot_be_written_costs_a_count_alone() {
        let dir = TempDir::new();
        let cache = CompileCache::open(dir.join("c"), 0).unwrap();
        let plugin = dir.join("p.so");
        fs::write(&plugin, "one").unwrap();
        let first = cache.plugin_hash(&plugin).unwrap();
        let note = fs::read_dir(&cache.dir).unwrap().next().unwrap();
        let note = note.unwrap().path();
        fs::remove_file(&note).unwrap();
        fs::create_dir(&note).unwrap();
        assert_eq!(cache.plugin_hash(&plugin).unwrap(), first);
    }

    #[test]
    fn temporary_files_of_others_stay() {
        let dir = TempDir::new();
        let entry = dir.join("x.exe");
        let process = std::process::id();
        let names = (0..300).map(|number| format!("{process}-{number}.tmp"));
        let others: Vec<PathBuf> = names.map(|name| entry.with_extension(name)).collect();
        for other in &others {
            fs::write(other, "").unwrap();
        }
        write_atomically(&entry, &[b"new"]).unwrap();
        assert_eq!(fs::read(&entry).unwrap(), b"new");
        assert!(others.iter().all(|other| other.exists()));
    }

    #[test]
    fn flags_come_from_the_value_or_the_file_that_it_names() {
        let dir = TempDir::new();
        let value = |text: &str| flags_of(OsStr::new(text));
        assert_eq!(value("").unwrap(), "");
        assert_eq!(
            value(" \n--xla_a=1 --xla_b").unwrap(),
            " \n--xla_a=1 --xla_b"
        );
        let file = dir.join("onednn flags");
        for flags in ["--xla_a=1\n", "--xla_cpu_use_onednn=true"] {
            fs::write(&file, flags).unwrap();
            assert_eq!(flags_of(file.as_os_str()).unwrap(), flags);
        }
        let absent = flags_of(dir.join("absent").as_os_str()).unwrap_err();
        assert!(absent.contains("absent, the file of flags"), "{absent}");
        let folder = flags_of(dir.as_os_str()).unwrap_err();
        assert!(folder.contains("it is no plain file"), "{folder}");
    }

    #[test]
    fn onednn_programs_are_never_stored() {
        let check = |name: &str, value| {
            unsafe_to_serialize(&BTreeMap::from([(name.to_owned(), value)]), "").is_some()
        };
        assert!(check("xla_cpu_use_onednn", OverrideValue::Bool(true)));
        assert!(check(
            "xla_cpu_experimental_onednn_custom_call",
            OverrideValue::Text("True".into())
        ));
        assert!(!check("xla_cpu_use_onednn", OverrideValue::Bool(false)));
        assert!(!check(
            "xla_cpu_enable_fast_math",
            OverrideValue::Bool(true)
        ));
        assert!(unsafe_to_serialize(&BTreeMap::new(), "--xla_cpu_use_onednn=true").is_some());
    }
}
