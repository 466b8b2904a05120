//! Checkpoints that a `fit` writes, at once or behind the training.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::callbacks::{Callbacks, SaveWish};
use super::step_times::StepPart;
use super::train_loop::FitRun;
use super::workers::on_chief;
use super::{Fit, Trainer};
use crate::checkpoint::{CheckpointWriterMark, TrainingState, check_state};
use crate::engine::Notice;
use crate::replicas::Placement;
use crate::storage::atomic_dir::Replaced;
use crate::storage::remove_file;
use crate::storage::store::is_url;
use crate::{Error, Result};

/// How checkpoints are written behind the training: the state is copied from the device between two steps, and a thread checks and
/// writes it while training goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveBehind {
    /// A checkpoint that is due while another is being written waits for it.
    Wait,
    /// It is left out, but for the last one of a training that is done or interrupted.
    Skip,
}

/// The thread that writes a checkpoint, if one does.
#[derive(Default)]
pub(super) struct CheckpointWriter {
    thread: Option<JoinHandle<Result<()>>>,
    /// The right of the first of several processes to write its checkpoints.
    marks: Arc<[CheckpointWriterMark]>,
    pub(super) removal: Removal,
}

/// The thread that removes what a checkpoint has replaced, if one does: the checkpoint is on disk, and nothing needs to wait.
#[derive(Default)]
pub(super) struct Removal(Mutex<Option<JoinHandle<()>>>);

impl Removal {
    /// Begins to remove this, and to free what was written, when what was begun before is done.
    pub(super) fn begin(&self, replaced: Replaced, written: impl Send + 'static) {
        self.finish();
        let thread = std::thread::Builder::new().name("removal".to_owned());
        let thread = thread.spawn(move || drop((written, replaced)));
        // Without a thread a later save removes it, when this process has ended.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
    }

    /// Waits for what was begun.
    pub(super) fn finish(&self) {
        let thread = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // It refuses nothing, and has no result.
        let _ = thread.map(JoinHandle::join);
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.finish();
    }
}

impl CheckpointWriter {
    /// Takes the right to write the checkpoints of callbacks, in the first of several processes.
    pub(super) fn take_checkpoints(
        &mut self,
        placement: &Placement,
        callbacks: &Callbacks,
    ) -> Result<()> {
        let Some(world) = placement.world().filter(|world| world.is_chief()) else {
            return Ok(());
        };
        let generation = world.generation();
        let paths = callbacks.places_to_go_on_from().into_iter();
        let marks: Result<_> = paths
            .map(|path| CheckpointWriterMark::take(&path, generation))
            .collect();
        self.marks = marks?;
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Begins to write, when what was begun before is done.
    fn begin(&mut self, write: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        self.finish()?;
        let thread = std::thread::Builder::new().name("checkpoint".to_owned());
        let thread = thread.spawn(write).map_err(|source| Error::Io {
            path: PathBuf::new(),
            action: "start the thread that writes checkpoints to",
            source,
        })?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Writes in the first process: at once, for which the others wait, or behind the training.
    fn write(&mut self, placement: &Placement, is_behind: bool, save: Save) -> Result<()> {
        if !is_behind {
            save.check()?;
            return self.write_on_chief(placement, "checkpoint", || Ok(save));
        }
        let is_chief = placement.world().is_none_or(|world| world.is_chief());
        match is_chief {
            true => self.begin(move || {
                save.check()?;
                save.write().map(drop)
            }),
            false => Ok(()),
        }
    }

    /// Writes at once in the first process what it is to save, and removes behind the training what that replaces.
    fn write_on_chief(
        &self,
        placement: &Placement,
        place: &str,
        save: impl FnOnce() -> Result<Save>,
    ) -> Result<()> {
        self.removal.finish();
        let mut written = None;
        on_chief(placement, place, || {
            let save = save()?;
            written = Some((save.write()?, save));
            Ok(())
        })?;
        if let Some((replaced, save)) = written {
            self.removal.begin(replaced, save);
        }
        Ok(())
    }

    /// Waits for what was begun; its error is the one of that checkpoint.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.removal.finish();
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let bug = || Error::Bug("the thread that writes checkpoints has panicked".into());
        thread.join().unwrap_or_else(|_| Err(bug()))
    }
}

/// A checkpoint to be written.
struct Save {
    state: Option<TrainingState>,
    path: PathBuf,
    older: usize,
    /// What is removed when it is on disk.
    removed: Vec<PathBuf>,
    marks: Arc<[CheckpointWriterMark]>,
    notice: Notice,
}

impl Save {
    /// Refuses values that are not numbers.
    fn check(&self) -> Result<()> {
        self.state.as_ref().map_or(Ok(()), check_state)
    }

    /// Returns what the caller is to drop, which removes it.
    fn write(&self) -> Result<Replaced> {
        let mut replaced = Replaced::Nothing;
        if let Some(state) = &self.state {
            let may_write = || self.check_marks();
            replaced = state.save_keeping(&self.path, self.older, &|| Ok(()), &may_write)?;
            replaced.warning().into_iter().for_each(&*self.notice);
        }
        self.check_marks()?;
        self.removed
            .iter()
            .try_for_each(|path| remove_saved(path))?;
        Ok(replaced)
    }

    /// Refuses to write where other processes have taken these processes' place.
    fn check_marks(&self) -> Result<()> {
        self.marks.iter().try_for_each(CheckpointWriterMark::check)
    }
}

impl FitRun<'_> {
    /// Writes the checkpoints that callbacks have asked for; none of a state that is lost.
    pub(super) fn save_wished(&mut self) -> Result<()> {
        // One that was begun for this step is none to be left out for.
        let is_busy = self.trainer.writer.is_busy();
        let saves = std::mem::take(&mut self.wishes.saves);
        for wish in saves.into_iter().filter(|_| !self.wishes.is_lost) {
            write_wished(self.trainer, (&self.fit, is_busy), &wish)?;
            // The first worker writes, and is not slow for that.
            self.trainer.compiled.begin_own_times();
        }
        Ok(())
    }

    /// Has the last checkpoints of the training written also while others are, which are of steps before.
    pub(super) fn leave_none_out(&mut self) {
        for wish in &mut self.wishes.saves {
            wish.may_be_left_out = false;
        }
    }
}

/// Writes a checkpoint that a callback has asked for, and removes what that replaces; `is_busy`: one of a step before is being written.
fn write_wished(
    trainer: &mut Trainer,
    (fit, is_busy): (&Fit, bool),
    wish: &SaveWish,
) -> Result<()> {
    let is_skipped = wish.may_be_left_out && fit.save_behind == Some(SaveBehind::Skip) && is_busy;
    // What several processes copy they copy together, whether or not the first has time to write it.
    if is_skipped && trainer.placement().world().is_none() {
        return Ok(());
    }
    let before = trainer.compiled.clock.enter(StepPart::Checkpoint);
    if trainer.placement().servers().is_some() {
        write_from_servers(trainer, wish)?;
    } else {
        let save = save_of(trainer, wish)?;
        let placement = &trainer.compiled.placement;
        if let Some(world) = placement.world() {
            // A step whose exchange failed has changed nothing, and the position says that it was made.
            world.check()?;
        }
        if !is_skipped {
            let is_behind = fit.save_behind.is_some();
            trainer.writer.write(placement, is_behind, save)?;
        }
    }
    if let Some(path) = wish.path.as_ref().filter(|_| !is_skipped) {
        trainer.own_checkpoints.add(path);
    }
    trainer.compiled.clock.enter(before);
    Ok(())
}

fn save_of(trainer: &Trainer, wish: &SaveWish) -> Result<Save> {
    let state = wish.path.as_ref().map(|_| trainer.state_unchecked());
    Ok(Save {
        state: state.transpose()?,
        path: wish.path.clone().unwrap_or_default(),
        older: wish.older,
        removed: wish.removed.clone(),
        marks: Arc::clone(&trainer.writer.marks),
        notice: trainer.engine().notice_handle(),
    })
}

/// Writes a checkpoint in this process without the others, in the place of the one that is there.
pub(super) fn write_alone(trainer: &mut Trainer, fit: &Fit, path: &Path) -> Result<()> {
    let is_of_fit = fit.checkpoint.as_deref() == Some(path);
    let wish = SaveWish {
        path: Some(path.to_path_buf()),
        older: if is_of_fit {
            fit.keep_checkpoints.saturating_sub(1)
        } else {
            0
        },
        removed: Vec::new(),
        may_be_left_out: false,
    };
    let save = save_of(trainer, &wish)?;
    save.check()?;
    trainer.writer.finish()?;
    save.write().map(drop)
}

/// Reads from parameter servers in the process that writes alone.
fn write_from_servers(trainer: &Trainer, wish: &SaveWish) -> Result<()> {
    let path = wish.path.as_deref().unwrap_or(Path::new(""));
    let place = format!(
        "checkpoint `{}` of {:?}",
        path.display(),
        trainer.position()
    );
    trainer
        .writer
        .write_on_chief(trainer.placement(), &place, || {
            let save = save_of(trainer, wish)?;
            save.check()?;
            Ok(save)
        })
}

/// Removes a checkpoint or a file of weights that is no longer kept.
fn remove_saved(path: &Path) -> Result<()> {
    if path.is_dir() || is_url(path) {
        return TrainingState::remove(path);
    }
    remove_file(path)
}
