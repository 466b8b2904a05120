//! `Event` messages, as TensorFlow writes them.
//!
//! Fields with the default value are left out, except in a `TensorProto`, where TensorFlow writes the empty shape of a scalar.

use crate::message::Message;

/// `SessionLog.SessionStatus.START`.
const START: u64 = 1;

/// What an event says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What<'a> {
    /// The first event of a file: the version of the format, and who writes the file.
    FileVersion { writer: &'a str },
    /// Data under a tag for a plugin of TensorBoard, with what the plugin itself wants to know.
    Summary {
        tag: &'a str,
        plugin: &'a str,
        content: &'a [u8],
        tensor: Tensor<'a>,
    },
    /// A `GraphDef`.
    Graph(&'a [u8]),
    /// A training starts at this step: what was written before of this step and later ones does not count.
    SessionStart,
}

impl<'a> What<'a> {
    /// A number under a tag, as `tf.summary.scalar` writes it.
    pub(crate) const fn scalar(tag: &'a str, value: f32) -> Self {
        Self::Summary {
            tag,
            plugin: "scalars",
            content: &[],
            tensor: Tensor::Scalar(value),
        }
    }
}

/// A `TensorProto`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tensor<'a> {
    /// A number without dims.
    Scalar(f32),
    /// Rows of three numbers.
    Triples(&'a [[f64; 3]]),
    /// One text without dims.
    Text(&'a str),
    /// A list of byte strings.
    Strings(&'a [&'a [u8]]),
    /// No number at all: all that is said is in the content for the plugin.
    Nothing,
}

/// An `Event` of a time in seconds since 1970.
pub(crate) fn event(wall_time: f64, step: i64, what: What<'_>) -> Vec<u8> {
    Message::of(|event| {
        event.double(1, wall_time);
        if step != 0 {
            event.integer(2, step.cast_unsigned());
        }
        match what {
            What::FileVersion { writer } => {
                event.text(3, "brain.Event:2");
                event.message(10, |source| source.text(1, writer));
            }
            What::Summary {
                tag,
                plugin,
                content,
                tensor: value,
            } => event.message(5, |summary| {
                summary.message(1, |entry| {
                    entry.text(1, tag);
                    entry.message(8, |to| tensor(to, value));
                    entry.message(9, |metadata| {
                        metadata.message(1, |data| {
                            data.text(1, plugin);
                            if !content.is_empty() {
                                data.bytes(2, content);
                            }
                        });
                    });
                });
            }),
            What::Graph(graph) => event.bytes(4, graph),
            What::SessionStart => event.message(7, |log| log.integer(1, START)),
        }
    })
}

/// The types of `types.proto`.
mod types {
    pub(super) const FLOAT: u64 = 1;
    pub(super) const DOUBLE: u64 = 2;
    pub(super) const STRING: u64 = 7;
}

fn tensor(to: &mut Message, value: Tensor<'_>) {
    match value {
        Tensor::Scalar(value) => {
            head(to, types::FLOAT, &[]);
            to.bytes(4, &value.to_le_bytes());
        }
        Tensor::Triples(rows) => {
            head(to, types::DOUBLE, &[rows.len(), 3]);
            let bytes: Vec<u8> = rows
                .iter()
                .flatten()
                .flat_map(|x| x.to_le_bytes())
                .collect();
            to.bytes(4, &bytes);
        }
        Tensor::Text(text) => {
            head(to, types::STRING, &[]);
            to.text(8, text);
        }
        Tensor::Strings(strings) => {
            head(to, types::STRING, &[strings.len()]);
            for string in strings {
                to.bytes(8, string);
            }
        }
        Tensor::Nothing => head(to, types::FLOAT, &[0]),
    }
}

/// The element type and the dims.
fn head(to: &mut Message, element: u64, dims: &[usize]) {
    to.integer(1, element);
    to.message(2, |shape| {
        for &size in dims {
            shape.message(2, |dim| {
                if size != 0 {
                    dim.integer(1, size as u64);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::graph_def;
    use crate::record::framed;
    use crate::{GraphNode, HParam, HParamMetric, Histogram, Image, SessionStatus, hparams};

    const TENSORFLOW: What<'static> = What::FileVersion {
        writer: "tensorflow.core.util.events_writer",
    };

    /// The times of the events of a file.
    fn wall_times(mut file: &[u8]) -> Vec<f64> {
        let mut times = Vec::new();
        while let Some((length, _)) = file.split_first_chunk() {
            times.push(f64::from_le_bytes(file[13..21].try_into().unwrap()));
            file = &file[16 + u64::from_le_bytes(*length) as usize..];
        }
        times
    }

    /// The same events in our encoding, at the times of the golden file.
    fn check(golden: &[u8], events: &[(i64, What<'_>)]) {
        let times = wall_times(golden);
        assert_eq!(times.len(), events.len());
        let events = events.iter().zip(times);
        let ours: Vec<Vec<u8>> = events
            .map(|(&(step, what), time)| framed(&event(time, step, what)))
            .collect();
        assert_eq!(ours.concat(), golden);
    }

    #[test]
    fn scalars_are_the_bytes_that_tensorflow_writes() {
        let scalar = |tag, value, step| (step, What::scalar(tag, value));
        check(
            include_bytes!("../../../tests/golden/tensorboard/events.v2"),
            &[
                (0, TENSORFLOW),
                scalar("epoch_loss", 0.5, 0),
                scalar("epoch_accuracy", f32::NAN, 0),
                scalar("epoch_loss", 0.25, 1),
                scalar("epoch_loss", f32::INFINITY, 2),
                scalar("epoch_loss", 0.0, 127),
                scalar("epoch_learning_rate", -1e-3, 128),
                scalar("epoch_grösse", 1e30, 5_000_000_000),
                scalar(&"x".repeat(200), 3.0, 300),
            ],
        );
    }

    #[test]
    fn the_start_of_a_session_is_the_bytes_that_tensorflow_writes() {
        check(
            include_bytes!("../../../tests/golden/tensorboard/session_start.v2"),
            &[
                (0, TENSORFLOW),
                (0, What::SessionStart),
                (7, What::SessionStart),
            ],
        );
    }

    const fn summary<'a>(tag: &'a str, plugin: &'a str, tensor: Tensor<'a>) -> What<'a> {
        What::Summary {
            tag,
            plugin,
            content: &[],
            tensor,
        }
    }

    #[test]
    fn histograms_are_the_bytes_that_tensorflow_writes() {
        let many: Vec<f32> = (0..100).map(|i| (f64::from(i) * 0.37) as f32).collect();
        let data: [&[f32]; 4] = [&[0.1, -0.3, 0.25, 2.0, 0.1], &[3.0, 3.0], &[], &many];
        let histograms = data.map(Histogram::of);
        let mut events = vec![(0, TENSORFLOW)];
        for (step, histogram) in histograms.iter().enumerate() {
            let rows = Tensor::Triples(&histogram.0);
            events.push((
                step as i64,
                summary("dense/kernel/histogram", "histograms", rows),
            ));
        }
        check(
            include_bytes!("../../../tests/golden/tensorboard/histograms.v2"),
            &events,
        );
    }

    /// TensorFlow's bytes except inside the PNG files, which differ between encoders.
    #[test]
    fn images_are_the_messages_that_tensorflow_writes() {
        let golden = include_bytes!("../../../tests/golden/tensorboard/images.v2");
        let theirs: Vec<&[u8]> = starts(golden, b"\x89PNG").collect();
        let numbers = [&[0.0, 0.5, 1.0, -1.0, 2.0, 0.25][..], &[1.0; 6]];
        for (numbers, theirs) in numbers.into_iter().zip(&theirs) {
            let ours = Image::of_numbers(3, 2, 1, numbers).unwrap();
            assert_eq!(pixels(ours.png()), pixels(theirs));
        }
        let strings: [&[u8]; 4] = [b"3", b"2", &theirs[0][..73], &theirs[1][..73]];
        let images = summary("dense/kernel/image", "images", Tensor::Strings(&strings));
        check(golden, &[(0, TENSORFLOW), (3, images)]);
    }

    fn starts<'a>(bytes: &'a [u8], what: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        (0..bytes.len())
            .map(|at| &bytes[at..])
            .filter(move |rest| rest.starts_with(what))
    }

    fn pixels(png: &[u8]) -> Vec<u8> {
        let mut reader = png::Decoder::new(std::io::Cursor::new(png))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        pixels
    }

    #[test]
    fn texts_settings_and_graphs_are_the_bytes_that_tensorflow_writes() {
        let text = |text| summary("notes", "text", Tensor::Text(text));
        check(
            include_bytes!("../../../tests/golden/tensorboard/texts.v2"),
            &[
                (0, TENSORFLOW),
                (0, text("a **bold** word")),
                (300, text("ü")),
            ],
        );
    }

    #[test]
    fn settings_are_the_bytes_that_tensorflow_writes() {
        let metric = HParamMetric {
            tag: "epoch_loss".into(),
            run: "validation".into(),
            shown: "loss".into(),
        };
        let start = |name, value| hparams::session_start(2.5, "run-1", &[(name, value)]);
        let rate = ("learning_rate", HParam::Number(0.001));
        let contents = [
            hparams::experiment(1.5, std::slice::from_ref(&rate), &[metric]),
            start(rate.0, rate.1),
            start("optimizer", HParam::Text("adam".into())),
            start("shuffle", HParam::Flag(true)),
            hparams::session_end(9.0, SessionStatus::Succeeded),
        ];
        let kinds = ["experiment", "session_start_info", "session_end_info"];
        let tags = [0, 1, 1, 1, 2].map(|kind: usize| format!("_hparams_/{}", kinds[kind]));
        let mut events = vec![(0, TENSORFLOW)];
        events.extend(tags.iter().zip(&contents).map(|(tag, content)| {
            let what = What::Summary {
                tag,
                plugin: "hparams",
                content,
                tensor: Tensor::Nothing,
            };
            (0, what)
        }));
        check(
            include_bytes!("../../../tests/golden/tensorboard/hparams.v2"),
            &events,
        );
    }

    #[test]
    fn graphs_are_the_bytes_that_tensorflow_writes() {
        let nodes = [
            GraphNode {
                name: "x".into(),
                op: "Input".into(),
                shapes: vec![vec![None, Some(4)]],
                ..GraphNode::default()
            },
            GraphNode {
                name: "dense/y".into(),
                op: "Dense".into(),
                inputs: vec!["x".into()],
                settings: vec![("activation".into(), "relu".into())],
                ..GraphNode::default()
            },
        ];
        let graph = graph_def(&nodes);
        check(
            include_bytes!("../../../tests/golden/tensorboard/graph.v2"),
            &[(0, TENSORFLOW), (0, What::Graph(&graph))],
        );
    }
}
