//! *Model*: the objects that a store has for one block of tokens, and their sizes.
//!
//! Serving engines move KV cache in *pages* of a few tokens, and a store sees one object (or a few)
//! per page. A block of N tokens is `N / page_tokens` pages, and its objects are, page by
//! page of one kind, then of the next:
//!
//! ```text
//! object size = bytes per token × page_tokens
//! ```
//!
//! where the bytes per token follow from the published configuration of the model. Per kind of
//! attention:
//!
//! | attention | bytes per token | objects per page |
//! |---|---|---|
//! | grouped-query (GQA) | 2 (K and V) × layers × KV heads × head size × bytes per element | one |
//! | multi-head latent (MLA) | layers × (latent rank + rotary part) × bytes per element | one |
//! | sparse over latent (DSA), FP8 | layers × 656 (512 FP8 latent, 4 FP32 scales, 64 BF16 rotary) | the KV object … |
//! | | layers × 132 (128 FP8 index key, one FP32 scale) | … and the indexer object |
//!
//! `glm-5.1-dsa` takes the page sizes that were published for a running system instead: 3,274,752 B
//! of KV (78 layers × 656 B × 64 tokens, as the formula says) and 658,432 B of indexer (643 KiB,
//! 512 B below the formula). All sizes are for the whole model: no tensor parallelism.

use clap::ValueEnum;

/// A model whose KV cache is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Model {
    /// GLM-5.1-FP8, sparse attention: 3,274,752 B of KV and 658,432 B of indexer per 64 tokens
    #[value(name = "glm-5.1-dsa")]
    Glm51Dsa,
    /// DeepSeek-V3.2, sparse attention in FP8: 61 layers, 656 B of KV and 132 B of indexer each
    #[value(name = "deepseek-v3.2-dsa")]
    DeepseekV32Dsa,
    /// DeepSeek-V3 and R1, latent attention in BF16: 61 layers × (512 + 64)
    #[value(name = "deepseek-v3")]
    DeepseekV3,
    /// Llama 3.1 8B in BF16: 32 layers × 8 KV heads × 128
    #[value(name = "llama-3.1-8b")]
    Llama31_8b,
    /// Llama 3.1 70B in BF16: 80 layers × 8 KV heads × 128
    #[value(name = "llama-3.1-70b")]
    Llama31_70b,
    /// Mistral 7B in BF16: 32 layers × 8 KV heads × 128
    #[value(name = "mistral-7b")]
    Mistral7b,
    /// Qwen3 8B in BF16: 36 layers × 8 KV heads × 128
    #[value(name = "qwen3-8b")]
    Qwen3_8b,
    /// Qwen3 32B in BF16: 64 layers × 8 KV heads × 128
    #[value(name = "qwen3-32b")]
    Qwen3_32b,
}

/// Bytes of one BF16 or FP16 element.
const BF16: u64 = 2;

/// Bytes per token and layer of the FP8 sparse-attention KV: latent, its four scales, rotary part.
const DSA_KV: u64 = 512 + 4 * 4 + 64 * BF16;

/// Bytes per token and layer of the FP8 sparse-attention indexer: key and scale.
const DSA_INDEXER: u64 = 128 + 4;

/// Tokens of the page that GLM-5.1's published object sizes are for.
const GLM_PAGE_TOKENS: u64 = 64;

impl Model {
    /// Returns the name that selects the model.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Bytes per token of each object of a page.
    pub fn bytes_per_token(self) -> Vec<u64> {
        let gqa = |layers: u64, kv_heads: u64, head_size: u64| {
            vec![2 * layers * kv_heads * head_size * BF16]
        };
        match self {
            Model::Glm51Dsa => vec![3_274_752 / GLM_PAGE_TOKENS, 658_432 / GLM_PAGE_TOKENS],
            Model::DeepseekV32Dsa => vec![61 * DSA_KV, 61 * DSA_INDEXER],
            Model::DeepseekV3 => vec![61 * (512 + 64) * BF16],
            Model::Llama31_8b | Model::Mistral7b => gqa(32, 8, 128),
            Model::Llama31_70b => gqa(80, 8, 128),
            Model::Qwen3_8b => gqa(36, 8, 128),
            Model::Qwen3_32b => gqa(64, 8, 128),
        }
    }
}

/// The objects that are allocated for one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockLayout {
    objects: Vec<u64>,
    bytes: u64,
    block_tokens: u64,
    page_tokens: u64,
}

/// No such block can exist.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A block must be a whole number of pages.
    #[error(
        "a page of {page_tokens} tokens does not divide a block of {block_tokens} tokens; choose \
         --page-tokens that does"
    )]
    PageTokens {
        /// The requested page size.
        page_tokens: u64,
        /// Tokens of a block.
        block_tokens: u64,
    },
    /// An object has no bytes.
    #[error("an object of 0 bytes cannot be allocated")]
    ZeroSize,
    /// The block is larger than any space.
    #[error("a block of such objects has more than 2^64 bytes")]
    TooLarge,
}

impl BlockLayout {
    /// Returns the block of `block_tokens` tokens of a model, in pages of `page_tokens` tokens.
    ///
    /// # Errors
    /// [`LayoutError::PageTokens`] if the pages do not divide a block.
    pub fn of_model(
        model: Model,
        block_tokens: u64,
        page_tokens: u64,
    ) -> Result<Self, LayoutError> {
        let per_page: Vec<u64> =
            model.bytes_per_token().iter().map(|bytes| bytes.saturating_mul(page_tokens)).collect();
        Self::of_objects(&per_page, block_tokens, page_tokens)
    }

    /// Returns the block of `block_tokens` tokens whose pages of `page_tokens` tokens are objects
    /// of `per_page` bytes each.
    ///
    /// # Errors
    /// [`LayoutError`] if the pages do not divide a block, an object is empty, or the sum
    /// overflows.
    pub fn of_objects(
        per_page: &[u64],
        block_tokens: u64,
        page_tokens: u64,
    ) -> Result<Self, LayoutError> {
        if page_tokens == 0 || block_tokens == 0 || !block_tokens.is_multiple_of(page_tokens) {
            return Err(LayoutError::PageTokens { page_tokens, block_tokens });
        }
        if per_page.is_empty() || per_page.contains(&0) {
            return Err(LayoutError::ZeroSize);
        }
        let pages = block_tokens / page_tokens;
        let objects: Vec<u64> =
            per_page.iter().flat_map(|&size| std::iter::repeat_n(size, pages as usize)).collect();
        let bytes = objects
            .iter()
            .try_fold(0u64, |sum, &size| sum.checked_add(size))
            .ok_or(LayoutError::TooLarge)?;
        Ok(BlockLayout { objects, bytes, block_tokens, page_tokens })
    }

    /// The sizes of the block's objects in bytes, in the order they are allocated.
    pub fn objects(&self) -> &[u64] {
        &self.objects
    }

    /// All objects of the block together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Tokens of the block.
    pub fn block_tokens(&self) -> u64 {
        self.block_tokens
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> u64 {
        self.page_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmem_trace::mooncake::BLOCK_TOKENS;

    #[test]
    fn glm_pages_are_the_published_ones() {
        let layout = BlockLayout::of_model(Model::Glm51Dsa, BLOCK_TOKENS, 64).unwrap();
        let mut expected = vec![3_274_752; 8];
        expected.extend([658_432; 8]);
        assert_eq!(layout.objects(), expected);
        assert_eq!(layout.bytes(), 8 * (3_274_752 + 658_432));
        assert_eq!(3_274_752, 78 * DSA_KV * 64);
    }

    #[test]
    fn bytes_per_token_follow_from_the_configurations() {
        // Figures that the models' users quote: 128 KiB, 320 KiB, 256 KiB and 68.6 KiB a token.
        assert_eq!(Model::Llama31_8b.bytes_per_token(), [128 << 10]);
        assert_eq!(Model::Llama31_70b.bytes_per_token(), [320 << 10]);
        assert_eq!(Model::Qwen3_32b.bytes_per_token(), [256 << 10]);
        assert_eq!(Model::DeepseekV3.bytes_per_token(), [70_272]);
        assert_eq!(Model::DeepseekV32Dsa.bytes_per_token(), [40_016, 8_052]);
    }

    #[test]
    fn a_block_does_not_depend_on_its_pages() {
        for model in Model::value_variants() {
            let whole = BlockLayout::of_model(*model, BLOCK_TOKENS, BLOCK_TOKENS).unwrap();
            for page_tokens in [1, 16, 64, 256] {
                let paged = BlockLayout::of_model(*model, BLOCK_TOKENS, page_tokens).unwrap();
                assert_eq!(paged.bytes(), whole.bytes(), "{}", model.name());
                assert_eq!(
                    paged.objects().len() as u64,
                    whole.objects().len() as u64 * (BLOCK_TOKENS / page_tokens)
                );
            }
        }
    }

    #[test]
    fn blocks_that_cannot_be_fail() {
        let of = |sizes: &[u64], page| BlockLayout::of_objects(sizes, BLOCK_TOKENS, page);
        let pages = |page_tokens| of(&[10], page_tokens);
        let block_tokens = BLOCK_TOKENS;
        for page_tokens in [0, 3, 1024, u64::MAX] {
            assert_eq!(
                pages(page_tokens),
                Err(LayoutError::PageTokens { page_tokens, block_tokens })
            );
        }
        assert_eq!(of(&[10, 0], 64), Err(LayoutError::ZeroSize));
        assert_eq!(of(&[], 64), Err(LayoutError::ZeroSize));
        assert_eq!(of(&[u64::MAX / 4], 64), Err(LayoutError::TooLarge));
    }
}
