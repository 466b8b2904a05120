//! Standard output and standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use crate::failure::{Exit, Failure};

/// Results, line by line. A reader that went away (`phalanx devices | head -1`) is no error: what follows is dropped.
pub(crate) struct Output {
    sink: Box<dyn Write>,
    gone: bool,
}

impl Output {
    /// Standard output.
    pub(crate) fn stdout() -> Self {
        Self::to(io::stdout())
    }

    /// Any writer.
    pub(crate) fn to(sink: impl Write + 'static) -> Self {
        Self {
            sink: Box::new(sink),
            gone: false,
        }
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, text: impl Display) -> Result<(), Failure> {
        self.bytes(format!("{text}\n").as_bytes())
    }

    /// Writes bytes as they are, at once.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.gone {
            return Ok(());
        }
        match self.sink.write_all(bytes).and_then(|()| self.sink.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.gone = true;
                Ok(())
            }
            Err(error) => Err(Failure::new(
                Exit::Failed,
                format!("cannot write to standard output: {error}"),
            )
            .next("free some space, or send the output elsewhere")),
        }
    }
}

/// Tells the user something that is no result, on standard error.
pub(crate) fn notice(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// As [`notice`], on the line of a progress bar that is drawn again after it.
pub(crate) fn notice_over_bar(text: impl Display) {
    let erase = if io::stderr().is_terminal() {
        "\r\x1b[2K"
    } else {
        ""
    };
    notice(format_args!("{erase}{text}"));
}

/// Prints a failure: the message, its causes, and what to do.
pub(crate) fn report(failure: &Failure) {
    if !failure.message.is_empty() {
        notice(render(failure));
    }
}

fn render(failure: &Failure) -> String {
    let mut text = format!("error: {}", failure.message);
    for cause in &failure.causes {
        text.push_str("\n  caused by: ");
        text.push_str(cause);
    }
    if let Some(next) = &failure.next {
        text.push_str("\n  next: ");
        text.push_str(next);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_error_and_a_full_disk_is() {
        let mut gone = Output::to(Broken(ErrorKind::BrokenPipe));
        assert!(gone.line("one").is_ok() && gone.line("two").is_ok());
        let failure = Output::to(Broken(ErrorKind::StorageFull))
            .line("one")
            .unwrap_err();
        assert!(
            failure
                .message
                .starts_with("cannot write to standard output")
        );
    }

    #[test]
    fn a_failure_shows_its_causes_once_and_the_next_action() {
        let inner = io::Error::other("the disk is on fire");
        let outer = io::Error::other(Wrapped(inner));
        let failure = Failure::new(Exit::Failed, "cannot save")
            .because(Some(&outer))
            .next("buy a disk");
        assert_eq!(
            render(&failure),
            "error: cannot save\n  caused by: writing failed\n  caused by: the disk is on fire\n  next: buy a disk"
        );
    }

    #[derive(Debug)]
    struct Wrapped(io::Error);
    impl Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("writing failed")
        }
    }
    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
}
