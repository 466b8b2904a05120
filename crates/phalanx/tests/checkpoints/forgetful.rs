//! A file system that keeps at a crash what it was told to keep, and of the rest whatever it likes: of the contents of a file that was
//! not synced any pages, of the names in a directory that was not synced any changes, in whatever order they were made. Each change of
//! names by one call is made as a whole or not at all in each directory. It is made anew from the calls of a process under strace.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use phalanx_testkit::Random;

/// One call that changes a file system, with paths below the root.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    MakeDir(String),
    Create(String),
    Write(String, Vec<u8>),
    Sync(String),
    Rename(String, String),
    Exchange(String, String),
    Remove(String),
    /// The program said that a save is done.
    Answer,
}

/// Bytes that are on a disk or not, together.
const PAGE: usize = 512;
/// Changes of names that one call makes in one directory.
type Change = Vec<(String, Option<usize>)>;

#[derive(Clone, Debug)]
enum Node {
    File {
        synced: Vec<u8>,
        now: Vec<u8>,
    },
    Dir {
        synced: BTreeMap<String, usize>,
        pending: Vec<Change>,
        now: BTreeMap<String, usize>,
    },
}

/// Files and directories by number; the first one is the root.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Vec<Node>);

fn directory() -> Node {
    Node::Dir {
        synced: BTreeMap::new(),
        pending: Vec::new(),
        now: BTreeMap::new(),
    }
}

/// The directory and the name of a path.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self(vec![directory()])
    }

    fn find(&self, path: &str) -> Option<usize> {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names.try_fold(0, |number, name| match &self.0[number] {
            Node::Dir { now, .. } => now.get(name).copied(),
            Node::File { .. } => None,
        })
    }

    fn at(&self, path: &str) -> usize {
        self.find(path)
            .unwrap_or_else(|| panic!("there is no `{path}`"))
    }

    fn change(&mut self, dir: &str, change: Change) {
        let number = self.at(dir);
        let Node::Dir { now, pending, .. } = &mut self.0[number] else {
            panic!("`{dir}` is no directory");
        };
        for (name, node) in &change {
            match node {
                Some(node) => drop(now.insert(name.clone(), *node)),
                None => drop(now.remove(name)),
            }
        }
        pending.push(change);
    }

    fn add(&mut self, path: &str, node: Node) {
        let (dir, name) = split(path);
        self.0.push(node);
        let number = self.0.len() - 1;
        self.change(dir, vec![(name.to_owned(), Some(number))]);
    }

    fn rename(&mut self, from: &str, to: &str, back: Option<usize>) {
        let moved = self.at(from);
        let ((from_dir, from), (to_dir, to)) = (split(from), split(to));
        let there = (to.to_owned(), Some(moved));
        let here = (from.to_owned(), back);
        if from_dir == to_dir {
            return self.change(to_dir, vec![there, here]);
        }
        self.change(to_dir, vec![there]);
        self.change(from_dir, vec![here]);
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::MakeDir(path) => self.add(path, directory()),
            Op::Create(path) => {
                assert!(self.find(path).is_none(), "`{path}` is written in place");
                let (synced, now) = (Vec::new(), Vec::new());
                self.add(path, Node::File { synced, now });
            }
            Op::Write(path, bytes) => {
                let number = self.at(path);
                if let Node::File { now, .. } = &mut self.0[number] {
                    now.extend_from_slice(bytes);
                }
            }
            Op::Sync(path) => {
                let number = self.at(path);
                match &mut self.0[number] {
                    Node::File { synced, now } => synced.clone_from(now),
                    Node::Dir {
                        synced,
                        pending,
                        now,
                    } => {
                        synced.clone_from(now);
                        pending.clear();
                    }
                }
            }
            Op::Rename(from, to) => self.rename(from, to, None),
            Op::Exchange(from, to) => {
                let back = self.find(to);
                self.rename(from, to, back);
            }
            Op::Remove(path) => {
                self.at(path);
                let (dir, name) = split(path);
                self.change(dir, vec![(name.to_owned(), None)]);
            }
            Op::Answer => {}
        }
    }

    /// What a crash leaves, of which a share in per cent of all that was not synced is on the disk.
    pub(crate) fn crash(mut self, random: &mut Random, share: u64) -> Self {
        let mut happens = || random.below(100) < share;
        for node in &mut self.0 {
            match node {
                Node::File { synced, now } => {
                    let mut left = synced.clone();
                    // A length can be there without what is in the file.
                    if happens() {
                        left.resize(now.len(), 0);
                    }
                    let pages = synced.len() / PAGE..left.len().div_ceil(PAGE);
                    for page in pages.filter(|_| happens()) {
                        let end = (page * PAGE + PAGE).min(left.len());
                        left[page * PAGE..end].copy_from_slice(&now[page * PAGE..end]);
                    }
                    now.clone_from(&left);
                    *synced = left;
                }
                Node::Dir {
                    synced,
                    pending,
                    now,
                } => {
                    for (name, node) in pending.drain(..).filter(|_| happens()).flatten() {
                        match node {
                            Some(node) => drop(synced.insert(name, node)),
                            None => drop(synced.remove(&name)),
                        }
                    }
                    now.clone_from(synced);
                }
            }
        }
        self
    }

    /// Makes what is there in a folder that does not exist.
    pub(crate) fn make(&self, folder: &Path) {
        self.make_node(0, folder);
    }

    fn make_node(&self, number: usize, path: &Path) {
        match &self.0[number] {
            Node::File { now, .. } => fs::write(path, now).unwrap(),
            Node::Dir { now, .. } => {
                fs::create_dir(path).unwrap();
                for (name, node) in now {
                    self.make_node(*node, &path.join(name));
                }
            }
        }
    }
}

/// The calls of a log of strace below the root; `bytes` gives what the file at a path was filled with, `answer` is the name of the files
/// by which the program answers, before their numbers.
pub(crate) fn recorded(
    log: &str,
    root: &str,
    answer: &str,
    bytes: impl Fn(usize, &str) -> Vec<u8>,
) -> Vec<Op> {
    let (mut ops, mut answers) = (Vec::new(), 0);
    let mut filled: BTreeMap<String, usize> = BTreeMap::new();
    for line in log.lines() {
        let Some((name, arguments)) = line
            .split_once(' ')
            .and_then(|(_, call)| call.trim_start().split_once('('))
        else {
            continue;
        };
        // Other threads look at what is of the system, such as the number of processors, whenever they like.
        let is_of_the_save = line.contains(root) || line.contains(answer);
        assert!(
            !(is_of_the_save && line.contains("<unfinished")),
            "two threads at once: {line}"
        );
        if arguments.contains(" = -1 ") {
            continue;
        }
        if name == "openat" && arguments.contains(answer) {
            ops.push(Op::Answer);
            answers += 1;
            continue;
        }
        let paths = paths(arguments, root);
        let Some(path) = paths.first().cloned() else {
            continue;
        };
        let other = || paths[1].clone();
        ops.push(match name {
            "mkdir" => Op::MakeDir(path),
            "openat" if arguments.contains("O_CREAT") => {
                filled.remove(&path);
                Op::Create(path)
            }
            "write" => {
                let (_, count) = arguments.rsplit_once(" = ").unwrap();
                let count: usize = count.trim().parse().unwrap();
                let all = bytes(answers, &path);
                let at = filled.entry(path.clone()).or_default();
                let piece = all[*at..*at + count].to_vec();
                *at += count;
                Op::Write(path, piece)
            }
            "fsync" => Op::Sync(path),
            "renameat2" if arguments.contains("RENAME_EXCHANGE") => Op::Exchange(path, other()),
            "rename" | "renameat2" => Op::Rename(path, other()),
            "unlink" | "rmdir" => Op::Remove(path),
            "openat" | "fallocate" => continue,
            unknown => panic!("what does `{unknown}` do? {line}"),
        });
    }
    ops
}

/// The paths below the root in the arguments of a call, which strace shows in quotes or behind a number of an open file.
fn paths(arguments: &str, root: &str) -> Vec<String> {
    let after = arguments.split(root).skip(1);
    let below = after.filter(|rest| rest.starts_with(['/', '"', '>']));
    below
        .map(|rest| {
            let end = rest.find(['"', '>', '<', ',']).unwrap_or(rest.len());
            rest[..end].trim_start_matches('/').to_owned()
        })
        .collect()
}
