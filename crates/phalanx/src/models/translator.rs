//! Translation with a trained model.

use phalanx_graph::{DType, Graph, HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::beam_search::{BeamSearch, Hypothesis};
use crate::engine::{CompileRequest, Compiled, Engine};
use crate::nn::{Cx, Model};
use crate::saved::SavedModel;
use crate::{Error, Result};

/// Translates with a model of two inputs, source and target tokens, and one output, the logits of the next target
/// tokens: such as [`TransformerNmt`](super::TransformerNmt).
///
/// One program of fixed shapes gives the next token of every hypothesis; it recomputes the whole target for
/// each token, without a cache of keys and values. The search runs on the host, and is deterministic.
#[derive(Debug)]
pub struct Translator {
    engine: Engine,
    program: Compiled,
    values: Vec<Buffer>,
    search: BeamSearch,
    sentences: usize,
    source: Shape,
    target: Shape,
    vocabulary: usize,
    /// Where the model looks its source tokens up in a table.
    source_vocabulary: Option<usize>,
}

impl Translator {
    /// Compiles a model for batches of `sentences` sentences.
    ///
    /// # Errors
    /// When the model is not one for translation, the search makes no sense, its start or end is no target token, its translations are longer than the
    /// model's targets, or the device fails.
    pub fn new(
        engine: &Engine,
        model: &SavedModel,
        search: BeamSearch,
        sentences: usize,
    ) -> Result<Self> {
        search.check()?;
        let (source, target, vocabulary) = shapes(model.model())?;
        if search.max_length > target.dims[1] {
            let (longest, fits) = (search.max_length, target.dims[1]);
            return Err(Error::user(format!(
                "beam search: `max_length` is {longest}, but targets of the model have {fits} tokens; lower it"
            )));
        }
        for (name, token) in [("start", search.start), ("end", search.end)] {
            if !is_below(token, vocabulary) {
                return Err(Error::user(format!(
                    "beam search: `{name}` must be a token of the target vocabulary, from 1 to {}, got {token}",
                    vocabulary - 1
                )));
            }
        }
        if sentences == 0 {
            return Err(Error::user(
                "a translator needs room for 1 sentence or more, got 0",
            ));
        }
        let rows = sentences.saturating_mul(search.beams);
        let with_rows = |mut shape: Shape| {
            shape.dims[0] = rows;
            shape
        };
        let (source, target) = (with_rows(source), with_rows(target));
        let program = next_token(engine, model.model(), &source, &target)?;
        let values = model.values().iter().map(|value| engine.put(0, value));
        Ok(Self {
            values: values.collect::<Result<_>>()?,
            engine: engine.clone(),
            program,
            search,
            sentences,
            source,
            target,
            vocabulary,
            source_vocabulary: model.model().vocabulary(0),
        })
    }

    /// The hypotheses of each sentence, the best first, each until its end or the greatest length; sources are rows of tokens
    /// `[sentences, source length]`, padded with 0.
    ///
    /// # Errors
    /// When sources do not fit the model or have a token outside the vocabulary, scores are not numbers, or the device fails.
    pub fn hypotheses(&self, sources: &HostTensor) -> Result<Vec<Vec<Hypothesis>>> {
        self.best(sources, self.search.beams)
    }

    /// The `wanted` best hypotheses of each sentence.
    fn best(&self, sources: &HostTensor, wanted: usize) -> Result<Vec<Vec<Hypothesis>>> {
        if sources.dims().get(1..) != Some(&self.source.dims[1..]) {
            let (length, got) = (self.source.dims[1], sources.shape());
            return Err(Error::user(format!(
                "sources must be rows of {length} tokens, got {got}; pad or cut them"
            )));
        }
        let sources = sources.convert(DType::I32);
        self.check_tokens(&sources)?;
        let mut all = Vec::new();
        for first in (0..sources.rows()).step_by(self.sentences) {
            let end = sources.rows().min(first + self.sentences);
            all.extend(self.batch(&sources.slice_rows(first, end), wanted)?);
        }
        Ok(all)
    }

    /// The tokens of the best translation of each sentence, without start and end.
    ///
    /// # Errors
    /// As [`hypotheses`](Self::hypotheses).
    pub fn translate(&self, sources: &HostTensor) -> Result<Vec<Vec<i32>>> {
        let best = self.best(sources, 1)?.into_iter();
        let best = best.map(|ranked| ranked.into_iter().next());
        Ok(best
            .map(|best| best.map_or_else(Vec::new, |best| best.tokens))
            .collect())
    }

    fn check_tokens(&self, sources: &HostTensor) -> Result<()> {
        let Some(vocabulary) = self.source_vocabulary else {
            return Ok(());
        };
        let tokens = sources.values::<i32>().unwrap_or_default();
        let wrong = tokens
            .iter()
            .position(|&token| !is_below(token, vocabulary));
        wrong.map_or(Ok(()), |index| {
            let (row, place) = (index / self.source.dims[1], index % self.source.dims[1]);
            Err(Error::user(format!(
                "sources must be tokens from 0 to {}, got {} in row {row} at place {place}; use the vocabulary that the model was trained with",
                vocabulary - 1,
                tokens[index]
            )))
        })
    }

    fn batch(&self, sources: &HostTensor, wanted: usize) -> Result<Vec<Vec<Hypothesis>>> {
        let sentences = sources.rows();
        let tokens = sources.values::<i32>().unwrap_or_default();
        let length = self.source.dims[1];
        let mut repeated = Vec::with_capacity(self.source.len());
        for row in 0..self.source.dims[0] {
            // Rows without a sentence repeat the last one.
            let sentence = (row / self.search.beams).min(sentences - 1);
            repeated.extend_from_slice(&tokens[sentence * length..][..length]);
        }
        let source = HostTensor::new(self.source.dims.clone(), &repeated);
        let source = self.engine.put(0, &source)?;
        let next = |rows: &[Vec<i32>]| self.next(&source, rows);
        self.search.run(sentences, wanted, next)
    }

    /// The log probabilities of the tokens behind each prefix.
    fn next(&self, source: &Buffer, prefixes: &[Vec<i32>]) -> Result<Vec<Vec<f32>>> {
        let length = self.target.dims[1];
        let place = prefixes.iter().map(Vec::len).max().unwrap_or(1) - 1;
        let mut tokens = vec![0; self.target.len()];
        for (row, prefix) in tokens.chunks_mut(length).zip(prefixes) {
            row[..prefix.len()].copy_from_slice(prefix);
        }
        let target = HostTensor::new(self.target.dims.clone(), &tokens);
        let target = self.engine.put(0, &target)?;
        let place = i32::try_from(place).unwrap_or(i32::MAX);
        let place = self.engine.put(0, &HostTensor::scalar(place))?;
        let arguments: Vec<&Buffer> = self
            .values
            .iter()
            .chain([source, &target, &place])
            .collect();
        let results = self.program.run(&[&arguments])?.0;
        let shape = Shape::f32([self.target.dims[0], self.vocabulary]);
        let scores = self.engine.get(&results[0][0], &shape)?.f32s();
        let rows = scores.chunks(self.vocabulary).take(prefixes.len());
        Ok(rows.map(<[f32]>::to_vec).collect())
    }
}

fn is_below(token: i32, vocabulary: usize) -> bool {
    usize::try_from(token).is_ok_and(|token| token < vocabulary)
}

/// Shapes of source and target for one sentence, and the number of target tokens.
fn shapes(model: &Model) -> Result<(Shape, Shape, usize)> {
    let inputs: Vec<Shape> = model.inputs().map(|(_, shape)| shape).collect();
    let outputs = model.outputs();
    let ([source, target], [logits]) = (inputs.as_slice(), outputs.as_slice()) else {
        return Err(not_a_translator(model.name(), &inputs, &outputs));
    };
    let fits = source.rank() == 1 && target.rank() == 1 && logits.rank() == 2;
    if !fits || logits.dims[0] != target.dims[0] {
        return Err(not_a_translator(model.name(), &inputs, &outputs));
    }
    let row = |shape: &Shape| Shape::new(DType::I32, [1, shape.dims[0]]);
    Ok((row(source), row(target), logits.dims[1]))
}

fn not_a_translator(name: &str, inputs: &[Shape], outputs: &[Shape]) -> Error {
    Error::user(format!(
        "model `{name}` cannot translate: expected inputs [source], [target] and one output [target, vocabulary], got {inputs:?} and {outputs:?}; build one with `TransformerNmt`"
    ))
}

/// Arguments: the variables, source, target, the place of the last token. Output: log probabilities `[rows, tokens]`.
fn next_token(engine: &Engine, model: &Model, source: &Shape, target: &Shape) -> Result<Compiled> {
    let graph = Graph::new();
    let variables = model.variables().iter();
    let variables: Vec<_> = variables
        .map(|variable| graph.parameter(&variable.name, variable.shape.clone()))
        .collect();
    let source = graph.parameter("source", source.clone());
    let target = graph.parameter("target", target.clone());
    let place = graph.parameter("place", Shape::scalar(DType::I32));
    let mut cx = Cx::new(&graph, model, &variables);
    let types: Vec<DType> = model.inputs().map(|(_, shape)| shape.dtype).collect();
    let inputs = [source.convert(types[0]), target.convert(types[1])];
    let logits = model.call(&mut cx, &inputs).swap_remove(0);
    let (rows, vocabulary) = (logits.dim(0), logits.dim(2));
    let zero = graph.scalar(DType::I32, 0.0);
    let last = logits.dynamic_slice(&[&zero, &place, &zero], &[rows, 1, vocabulary]);
    let last = last.reshape(&[rows, vocabulary]).convert(DType::F32);
    let program = graph.finish(&[("scores", &last.log_softmax(1))])?;
    engine.compile(CompileRequest::new("next_token", &program))
}
