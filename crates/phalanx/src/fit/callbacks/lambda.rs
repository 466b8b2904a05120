//! A callback of functions.

use std::fmt;

use super::{Callback, CallbackContext};
use crate::Result;
use crate::fit::EpochLogs;

/// A callback made of functions: Keras' `LambdaCallback`. Other hooks need a type that implements [`Callback`].
#[derive(Default)]
pub struct Lambda {
    train_begin: Option<Box<Hook>>,
    train_end: Option<Box<Hook>>,
    epoch_begin: Option<Box<NumberedHook>>,
    epoch_end: Option<Box<EpochHook>>,
    batch_begin: Option<Box<NumberedHook>>,
    batch_end: Option<Box<NumberedHook>>,
}

type Hook = dyn FnMut(&mut CallbackContext<'_>) -> Result<()> + Send;
type NumberedHook = dyn FnMut(usize, &mut CallbackContext<'_>) -> Result<()> + Send;
type EpochHook = dyn FnMut(&mut EpochLogs, &mut CallbackContext<'_>) -> Result<()> + Send;

impl Lambda {
    /// No functions yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// See [`Callback::on_train_begin`].
    #[must_use]
    pub fn on_train_begin(
        mut self,
        hook: impl FnMut(&mut CallbackContext<'_>) -> Result<()> + Send + 'static,
    ) -> Self {
        self.train_begin = Some(Box::new(hook));
        self
    }

    /// See [`Callback::on_train_end`].
    #[must_use]
    pub fn on_train_end(
        mut self,
        hook: impl FnMut(&mut CallbackContext<'_>) -> Result<()> + Send + 'static,
    ) -> Self {
        self.train_end = Some(Box::new(hook));
        self
    }

    /// See [`Callback::on_epoch_begin`].
    #[must_use]
    pub fn on_epoch_begin(
        mut self,
        hook: impl FnMut(usize, &mut CallbackContext<'_>) -> Result<()> + Send + 'static,
    ) -> Self {
        self.epoch_begin = Some(Box::new(hook));
        self
    }

    /// See [`Callback::on_epoch_end`].
    #[must_use]
    pub fn on_epoch_end(
        mut self,
        hook: impl FnMut(&mut EpochLogs, &mut CallbackContext<'_>) -> Result<()> + Send + 'static,
    ) -> Self {
        self.epoch_end = Some(Box::new(hook));
        self
    }

    /// See [`Callback::on_train_batch_begin`].
    #[must_use]
    pub fn on_train_batch_begin(
        mut self,
        hook: impl FnMut(usize, &mut CallbackContext<'_>) -> Result<()> + Send + 'static,
    ) -> Self {
        self.batch_begin = Some(Box::new(hook));
        self
    }

    /// See [`Callback::on_train_batch_end`].
    #[must_use]
    pub fn on_train_batch_end(
        mut self,
        hook: impl FnMut(usize, &mut CallbackContext<'_>) -> Result<()> + Send + 'static,
    ) -> Self {
        self.batch_end = Some(Box::new(hook));
        self
    }
}

impl fmt::Debug for Lambda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lambda")
    }
}

impl Callback for Lambda {
    fn kind(&self) -> &'static str {
        "lambda"
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.train_begin.as_mut().map_or(Ok(()), |hook| hook(cx))
    }

    fn on_train_end(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.train_end.as_mut().map_or(Ok(()), |hook| hook(cx))
    }

    fn on_epoch_begin(&mut self, epoch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let hook = self.epoch_begin.as_mut();
        hook.map_or(Ok(()), |hook| hook(epoch, cx))
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        let hook = self.epoch_end.as_mut();
        hook.map_or(Ok(()), |hook| hook(done, cx))
    }

    fn on_train_batch_begin(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let hook = self.batch_begin.as_mut();
        hook.map_or(Ok(()), |hook| hook(batch, cx))
    }

    fn on_train_batch_end(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let hook = self.batch_end.as_mut();
        hook.map_or(Ok(()), |hook| hook(batch, cx))
    }
}
