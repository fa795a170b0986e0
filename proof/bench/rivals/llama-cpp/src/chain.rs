//! An owned chain of llama.cpp's samplers: the only place that calls it.

use std::ptr::NonNull;

use llama_cpp_sys_2 as llama;

/// A sampler of a chain.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    /// `llama_sampler_init_greedy`.
    Greedy,
    /// `llama_sampler_init_temp`.
    Temperature(f32),
    /// `llama_sampler_init_top_k`.
    TopK(usize),
    /// `llama_sampler_init_top_p`, keeping at least one token.
    TopP(f32),
    /// `llama_sampler_init_min_p`, keeping at least one token.
    MinP(f32),
    /// `llama_sampler_init_dist`, with seed 0.
    Draw,
}

/// A chain and the candidates it works on.
#[derive(Debug)]
pub struct Chain {
    sampler: NonNull<llama::llama_sampler>,
    candidates: Vec<llama::llama_token_data>,
}

impl Chain {
    /// Builds a chain for rows of `vocab` tokens.
    ///
    /// # Panics
    /// If llama.cpp gives no sampler.
    pub fn new(links: &[Link], vocab: usize) -> Self {
        // SAFETY: takes nothing, returns a struct of plain data.
        let parameters = unsafe { llama::llama_sampler_chain_default_params() };
        // SAFETY: takes plain data, returns an owned chain or null.
        let sampler = unsafe { llama::llama_sampler_chain_init(parameters) };
        let sampler = NonNull::new(sampler).expect("llama.cpp makes a chain");
        for &link in links {
            let link = link.init();
            // SAFETY: `sampler` is the chain made above; it takes over `link`, which nobody else has.
            unsafe { llama::llama_sampler_chain_add(sampler.as_ptr(), link.as_ptr()) };
        }
        Self { sampler, candidates: Vec::with_capacity(vocab) }
    }

    /// Fills the candidates, applies the chain, accepts and returns its token.
    pub fn sample(&mut self, logits: impl Iterator<Item = f32>) -> i64 {
        self.candidates.clear();
        let candidates = (0..).zip(logits).map(|(id, logit)| llama::llama_token_data { id, logit, p: 0.0 });
        self.candidates.extend(candidates);
        let mut array = llama::llama_token_data_array {
            data: self.candidates.as_mut_ptr(),
            size: self.candidates.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: `sampler` is a live chain; `array` describes the initialised candidates, which are
        // borrowed for the call. Samplers reorder and shorten in place, and never grow.
        unsafe { llama::llama_sampler_apply(self.sampler.as_ptr(), &raw mut array) };
        let selected = usize::try_from(array.selected).expect("the chain selects");
        assert!(selected < array.size && array.data == self.candidates.as_mut_ptr());
        let token = self.candidates[selected].id;
        // SAFETY: `sampler` is a live chain, and the token is plain data.
        unsafe { llama::llama_sampler_accept(self.sampler.as_ptr(), token) };
        i64::from(token)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: the chain was made in `new`, is freed once, and frees the samplers added to it.
        unsafe { llama::llama_sampler_free(self.sampler.as_ptr()) };
    }
}

impl Link {
    fn init(self) -> NonNull<llama::llama_sampler> {
        let sampler = match self {
            // SAFETY: takes nothing, returns an owned sampler.
            Link::Greedy => unsafe { llama::llama_sampler_init_greedy() },
            // SAFETY: takes plain data, returns an owned sampler.
            Link::Temperature(temperature) => unsafe { llama::llama_sampler_init_temp(temperature) },
            // SAFETY: takes plain data, returns an owned sampler.
            Link::TopK(k) => unsafe { llama::llama_sampler_init_top_k(k as i32) },
            // SAFETY: takes plain data, returns an owned sampler.
            Link::TopP(p) => unsafe { llama::llama_sampler_init_top_p(p, 1) },
            // SAFETY: takes plain data, returns an owned sampler.
            Link::MinP(p) => unsafe { llama::llama_sampler_init_min_p(p, 1) },
            // SAFETY: takes plain data, returns an owned sampler.
            Link::Draw => unsafe { llama::llama_sampler_init_dist(0) },
        };
        NonNull::new(sampler).expect("llama.cpp makes a sampler")
    }
}
