//! The forward pass against a naive one in f64, on models of a few thousand weights.

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use gumball_cli::model::{Error, Llama};

use crate::made::{self, Metadata};
use crate::support::uniform;

const BLOCKS: usize = 2;
const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 32;
const FEED_FORWARD: usize = 96;
const VOCAB: usize = 40;
const TOKENS: [u32; 7] = [3, 39, 0, 3, 17, 20, 8];

/// A model of random weights, which go into the file and which the naive pass reads.
struct Tiny {
    metadata: Metadata,
    weights: Vec<(String, Vec<usize>, Vec<f32>)>,
    dtype: GgmlDType,
}

impl Tiny {
    fn new() -> Self {
        let number = |value: usize| Value::U32(value as u32);
        let metadata = [
            ("general.architecture", Value::String("llama".into())),
            ("llama.block_count", number(BLOCKS)),
            ("llama.embedding_length", number(HIDDEN)),
            ("llama.feed_forward_length", number(FEED_FORWARD)),
            ("llama.attention.head_count", number(HEADS)),
            ("llama.attention.head_count_kv", number(KV_HEADS)),
            ("llama.attention.key_length", number(HEAD)),
            ("llama.context_length", number(16)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("llama.rope.freq_base", Value::F32(500.0)),
        ];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
        let mut tiny = Tiny { metadata, weights: Vec::new(), dtype: GgmlDType::F32 };
        tiny.add("token_embd.weight", &[VOCAB, HIDDEN]);
        tiny.add("output_norm.weight", &[HIDDEN]);
        let (wide, narrow) = (HEADS * HEAD, KV_HEADS * HEAD);
        for block in 0..BLOCKS {
            let shapes: [(&str, &[usize]); 9] = [
                ("attn_norm", &[HIDDEN]),
                ("attn_q", &[wide, HIDDEN]),
                ("attn_k", &[narrow, HIDDEN]),
                ("attn_v", &[narrow, HIDDEN]),
                ("attn_output", &[HIDDEN, wide]),
                ("ffn_norm", &[HIDDEN]),
                ("ffn_gate", &[FEED_FORWARD, HIDDEN]),
                ("ffn_up", &[FEED_FORWARD, HIDDEN]),
                ("ffn_down", &[HIDDEN, FEED_FORWARD]),
            ];
            shapes.iter().for_each(|(name, shape)| tiny.add(&format!("blk.{block}.{name}.weight"), shape));
        }
        tiny
    }

    /// Adds a tensor of numbers in -0.5..0.5; norms and factors, of one dimension, in 0.5..1.5.
    fn add(&mut self, name: &str, shape: &[usize]) {
        let offset = if shape.len() == 1 && !name.ends_with("bias") { 1.0 } else { 0.0 };
        let random = uniform(self.weights.len() as u64 + 1).map(|x| x + offset);
        let values = random.take(shape.iter().product()).collect();
        self.weights.push((name.into(), shape.into(), values));
    }

    /// Returns the model in full precision, its matrices rounded to `dtype`.
    fn rounded(&self) -> Self {
        let mut rounded =
            Tiny { dtype: GgmlDType::F32, metadata: self.metadata.clone(), weights: Vec::new() };
        for (name, shape, values) in &self.weights {
            let mut values = values.clone();
            if shape.len() == 2 {
                let tensor = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu).expect("a tensor");
                let tensor = QTensor::quantize(&tensor, self.dtype).expect("a quantised tensor");
                let tensor = tensor.dequantize(&Device::Cpu).and_then(|tensor| tensor.flatten_all());
                values = tensor.and_then(|tensor| tensor.to_vec1()).expect("values");
            }
            rounded.weights.push((name.clone(), shape.clone(), values));
        }
        rounded
    }

    fn set(&mut self, key: &str, value: Value) {
        self.metadata.insert(key.into(), value);
    }

    fn tensors(&self) -> Vec<(String, QTensor)> {
        let tensors = self.weights.iter().map(|(name, shape, values)| {
            let tensor = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu).expect("a tensor");
            let dtype = if shape.len() == 1 { GgmlDType::F32 } else { self.dtype };
            (name.clone(), QTensor::quantize(&tensor, dtype).expect("a quantised tensor"))
        });
        tensors.collect()
    }

    fn load(&self) -> Result<Llama, Error> {
        Llama::load(&mut made::open(&self.metadata, &self.tensors())?)
    }

    fn logits(&self) -> Vec<f32> {
        let mut llama = self.load().expect("the model loads");
        let hidden = llama.hidden(&TOKENS).expect("the tokens run");
        llama.logits_all(&hidden).expect("logits")
    }

    fn weight(&self, name: &str) -> Option<Vec<f64>> {
        let (.., values) = self.weights.iter().find(|(known, ..)| known == name)?;
        Some(values.iter().map(|&value| f64::from(value)).collect())
    }

    /// `matrix x + bias`.
    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let matrix = self.weight(&format!("{name}.weight")).expect("a matrix");
        let rows = matrix.chunks_exact(x.len());
        let product = rows.map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>());
        match self.weight(&format!("{name}.bias")) {
            Some(bias) => product.zip(bias).map(|(value, bias)| value + bias).collect(),
            None => product.collect(),
        }
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let scale = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-5).sqrt();
        let weight = self.weight(&format!("{name}.weight")).expect("a norm");
        x.iter().zip(weight).map(|(x, weight)| x / scale * weight).collect()
    }

    /// The naive pass; `frequencies` are the rotation's, one a pair.
    fn naive(&self, frequencies: &[f64]) -> Vec<f64> {
        let embedding = self.weight("token_embd.weight").expect("an embedding");
        let mut cache = vec![(Vec::new(), Vec::new()); BLOCKS];
        let mut logits = Vec::new();
        for (position, token) in TOKENS.into_iter().enumerate() {
            let turn = |mut heads: Vec<f64>| {
                for head in heads.chunks_exact_mut(HEAD) {
                    for (pair, frequency) in frequencies.iter().enumerate() {
                        let (sin, cos) = (position as f64 * frequency).sin_cos();
                        let (x, y) = (head[2 * pair], head[2 * pair + 1]);
                        head[2 * pair] = x * cos - y * sin;
                        head[2 * pair + 1] = x * sin + y * cos;
                    }
                }
                heads
            };
            let mut x = embedding[token as usize * HIDDEN..][..HIDDEN].to_vec();
            for (block, (keys, values)) in cache.iter_mut().enumerate() {
                let name = |name: &str| format!("blk.{block}.{name}");
                let inner = self.norm(&name("attn_norm"), &x);
                let queries = turn(self.product(&name("attn_q"), &inner));
                keys.push(turn(self.product(&name("attn_k"), &inner)));
                values.push(self.product(&name("attn_v"), &inner));
                let mut mixed = vec![0.0; HEADS * HEAD];
                for head in 0..HEADS {
                    let shared = head / (HEADS / KV_HEADS) * HEAD;
                    let score = |key: &Vec<f64>| {
                        let products = (0..HEAD).map(|i| queries[head * HEAD + i] * key[shared + i]);
                        (products.sum::<f64>() / (HEAD as f64).sqrt()).exp()
                    };
                    let scores: Vec<f64> = keys.iter().map(score).collect();
                    let mass: f64 = scores.iter().sum();
                    for (score, value) in scores.iter().zip(&*values) {
                        for i in 0..HEAD {
                            mixed[head * HEAD + i] += score / mass * value[shared + i];
                        }
                    }
                }
                let output = self.product(&name("attn_output"), &mixed);
                x.iter_mut().zip(output).for_each(|(x, output)| *x += output);
                let inner = self.norm(&name("ffn_norm"), &x);
                let gate = self.product(&name("ffn_gate"), &inner);
                let up = self.product(&name("ffn_up"), &inner);
                let gated: Vec<f64> =
                    gate.iter().zip(up).map(|(g, up)| g / (1.0 + (-g).exp()) * up).collect();
                let down = self.product(&name("ffn_down"), &gated);
                x.iter_mut().zip(down).for_each(|(x, down)| *x += down);
            }
            let head = if self.weight("output.weight").is_some() { "output" } else { "token_embd" };
            logits.extend(self.product(head, &self.norm("output_norm", &x)));
        }
        logits
    }

    /// Sixty-four times f32's rounding of the largest logit: sums of a hundred terms, twice over.
    fn agrees(&self, frequencies: &[f64]) {
        let (ours, naive) = (self.logits(), self.naive(frequencies));
        let largest = naive.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
        for (ours, naive) in ours.iter().zip(&naive) {
            let bound = 64.0 * f64::from(f32::EPSILON) * largest;
            assert!((f64::from(*ours) - naive).abs() <= bound, "{ours} and {naive}, largest {largest}");
        }
    }
}

fn frequencies(rotated: usize) -> Vec<f64> {
    (0..rotated / 2).map(|pair| 500.0_f64.powf(-2.0 * pair as f64 / rotated as f64)).collect()
}

#[test]
fn grouped_heads_and_a_tied_output_agree_with_the_naive_pass() {
    Tiny::new().agrees(&frequencies(HEAD));
}

#[test]
fn biases_and_an_output_of_its_own_agree_with_the_naive_pass() {
    let mut tiny = Tiny::new();
    tiny.add("output.weight", &[VOCAB, HIDDEN]);
    tiny.add("blk.0.attn_q.bias", &[HEADS * HEAD]);
    tiny.add("blk.1.attn_v.bias", &[KV_HEADS * HEAD]);
    tiny.add("blk.1.ffn_down.bias", &[HIDDEN]);
    tiny.agrees(&frequencies(HEAD));
}

#[test]
fn every_way_to_stretch_the_context_agrees_with_the_naive_pass() {
    let mut linear = Tiny::new();
    linear.set("llama.rope.scaling.type", Value::String("linear".into()));
    linear.set("llama.rope.scaling.factor", Value::F32(4.0));
    linear.agrees(&frequencies(HEAD).iter().map(|turn| turn / 4.0).collect::<Vec<_>>());

    let mut factors = Tiny::new();
    factors.add("rope_freqs.weight", &[HEAD / 2]);
    let by = factors.weight("rope_freqs.weight").expect("factors");
    factors.agrees(&frequencies(HEAD).iter().zip(by).map(|(turn, by)| turn / by).collect::<Vec<_>>());

    let mut partial = Tiny::new();
    partial.set("llama.rope.dimension_count", Value::U32(8));
    partial.agrees(&frequencies(8));
}

#[test]
fn half_precision_weights_are_kept_exactly() {
    for dtype in [GgmlDType::F16, GgmlDType::BF16] {
        let mut short = Tiny::new();
        short.dtype = dtype;
        assert!(short.logits() == short.rounded().logits(), "{dtype:?}");
    }
}

#[test]
fn slow_quantisations_become_q8_0() {
    for dtype in [GgmlDType::Q4_1, GgmlDType::Q5_0, GgmlDType::Q5_1] {
        let mut slow = Tiny::new();
        slow.dtype = dtype;
        let mut fast = slow.rounded();
        fast.dtype = GgmlDType::Q8_0;
        assert!(slow.logits() == fast.logits(), "{dtype:?}");
    }
}

#[test]
fn quantised_weights_agree_with_their_values_but_for_the_rounding_of_activations() {
    for dtype in [GgmlDType::Q4_0, GgmlDType::Q8_0] {
        let mut short = Tiny::new();
        short.dtype = dtype;
        let (short, full) = (short.logits(), short.rounded().logits());
        let square = |x: f32| f64::from(x * x);
        let error: f64 = short.iter().zip(&full).map(|(short, full)| square(short - full)).sum();
        let size: f64 = full.iter().map(|&full| square(full)).sum();
        // Activations are rounded before each of fifteen products, which costs 3 % here; a wrong layout of
        // the weights would cost as much as the logits are.
        assert!(error.sqrt() < 0.1 * size.sqrt(), "{dtype:?}: {} of {}", error.sqrt(), size.sqrt());
    }
}

#[test]
fn the_head_matrix_gives_the_logits() {
    let tiny = Tiny::new();
    let mut llama = tiny.load().expect("the model loads");
    let hidden = llama.hidden(&TOKENS).expect("the tokens run");
    let matrix = llama.head_matrix().expect("the head");
    assert_eq!(matrix.len(), VOCAB * HIDDEN);
    let logits = llama.logits(&hidden).expect("logits");
    for (row, logit) in matrix.chunks_exact(HIDDEN).zip(logits) {
        let sum: f32 = row.iter().zip(hidden.last()).map(|(a, b)| a * b).sum();
        assert!((sum - logit).abs() < 1e-4, "{sum} and {logit}");
    }
}

#[test]
fn what_the_pass_would_get_wrong_is_refused() {
    let refused: [(&str, Value, &str); 5] = [
        ("general.architecture", Value::String("gemma2".into()), "architecture `gemma2`"),
        ("llama.expert_count", Value::U32(8), "experts"),
        ("llama.rope.scaling.type", Value::String("yarn".into()), "rope scaling `yarn`"),
        ("llama.attention.value_length", Value::U32(16), "values of 16"),
        ("llama.attention.sliding_window", Value::U32(8), "sliding window"),
    ];
    for (key, value, named) in refused {
        let mut tiny = Tiny::new();
        tiny.set(key, value);
        let error = tiny.load().expect_err(key);
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn a_header_that_makes_no_sense_is_told() {
    let damaged: [(&str, Value); 4] = [
        ("llama.embedding_length", Value::U32(65)),
        ("llama.block_count", Value::U32(3)),
        ("llama.attention.head_count_kv", Value::U32(3)),
        ("llama.context_length", Value::String("long".into())),
    ];
    for (key, value) in damaged {
        let mut tiny = Tiny::new();
        tiny.set(key, value);
        let error = tiny.load().expect_err(key);
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
    }
    let mut tiny = Tiny::new();
    tiny.metadata.remove("llama.block_count");
    let error = tiny.load().expect_err("no blocks");
    assert!(error.to_string().contains("`llama.block_count`"), "{error}");
}
