//! From products to logits: bias, scale and cap, sixteen at a time (H2, H3).

use gumball_spec::head::{Scaling, TWO_LOG2_E};

use crate::lanes::{Kernel, Lanes, WIDTH};
use crate::num;

/// Turns products into logits where they lie.
pub struct Finish<'a> {
    pub logits: &'a mut [f32],
    pub bias: Option<&'a [f32]>,
    pub scaling: &'a Scaling,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { logits, bias, scaling } = self;
        let (chunks, rest) = logits.as_chunks_mut::<WIDTH>();
        for (i, chunk) in chunks.iter_mut().enumerate() {
            let bias = bias.map(|bias| *bias[i * WIDTH..].first_chunk::<WIDTH>().expect("one a logit"));
            l.call(Sixteen { logits: chunk, bias, scaling });
        }
        if !rest.is_empty() {
            let mut chunk = [0.0; WIDTH];
            chunk[..rest.len()].copy_from_slice(rest);
            let bias = bias.map(|bias| {
                let mut padded = [0.0; WIDTH];
                padded[..rest.len()].copy_from_slice(&bias[chunks.len() * WIDTH..]);
                padded
            });
            l.call(Sixteen { logits: &mut chunk, bias, scaling });
            rest.copy_from_slice(&chunk[..rest.len()]);
        }
    }
}

/// Turns sixteen products into logits.
struct Sixteen<'a> {
    logits: &'a mut [f32; WIDTH],
    bias: Option<[f32; WIDTH]>,
    scaling: &'a Scaling,
}

impl Kernel for Sixteen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Scaling { logit_scale, softcap } = *self.scaling;
        let mut z = l.load(self.logits);
        if let Some(bias) = &self.bias {
            z = l.add(z, l.load(bias));
        }
        z = l.mul(z, l.splat(logit_scale));
        if softcap > 0.0 {
            let (bits, sign) = (l.bits(z), l.splat_u(0x8000_0000));
            let cap = l.splat(softcap);
            let magnitude = l.float_of_bits(l.and(bits, l.splat_u(0x7FFF_FFFF)));
            let exponent = l.mul(l.div(magnitude, cap), l.splat(TWO_LOG2_E));
            let (e, one) = (num::exp2(l, l.sub(l.splat(0.0), exponent)), l.splat(1.0));
            let capped = l.mul(cap, l.div(l.sub(one, e), l.add(one, e)));
            let capped = l.float_of_bits(l.or(l.bits(capped), l.and(bits, sign)));
            z = l.select(l.equal(z, z), capped, z);
        }
        z = l.select(l.equal(z, z), z, l.splat(f32::NAN));
        l.store(z, self.logits);
    }
}
