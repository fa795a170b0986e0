//! What opens and closes a section of the text, given as texts instead of ids: cut by the model's tokenizer.

use clap::Args;
use gumball_spec::SamplingParams;

use crate::model::Tokenizer;
use crate::{Error, Result};

/// The texts of a section. Each is cut by itself; a model may cut it otherwise beside other text.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Section")]
pub struct SectionTexts {
    /// The text that opens a section, in the place of --section-open
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub section_open_text: Option<String>,
    /// The text that closes a section, in the place of --section-close
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub section_close_text: Option<String>,
    /// The text that is forced when a section's budget is used up, in the place of --section-end
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub section_end_text: Option<String>,
}

impl SectionTexts {
    /// Writes the ids of the texts into a request's parameters.
    ///
    /// # Errors
    /// - [`Error::Usage`] if the parameters have these ids.
    /// - The tokenizer's error.
    pub fn put(&self, params: &mut SamplingParams, tokenizer: &Tokenizer) -> Result<()> {
        let texts = [&self.section_open_text, &self.section_close_text, &self.section_end_text];
        if texts.iter().all(|text| text.is_none()) {
            return Ok(());
        }
        let section = params.section.get_or_insert_default();
        let fields = [("open", &mut section.open), ("close", &mut section.close), ("end", &mut section.end)];
        for ((name, ids), text) in fields.into_iter().zip(texts) {
            let Some(text) = text else { continue };
            if !ids.is_empty() {
                let reason =
                    format!("--section-{name}-text is {text:?}, but section.{name} has ids; leave one out");
                return Err(Error::Usage(reason));
            }
            *ids = tokenizer.encode(text)?;
        }
        Ok(())
    }
}
