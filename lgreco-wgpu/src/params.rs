//! Defines the parameters of a dispatch in Rust, with the same layout as in the shader.

/// Defines the struct `Params` with fields of four bytes each, in the order of the shader's struct `Params`.
macro_rules! params {
    ($(#[$about:meta])* $($field:ident),* $(,)?) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub(crate) struct Params {
            $(pub(crate) $field: u32,)*
        }

        #[cfg(test)]
        impl Params {
            /// Names and offsets of the fields.
            pub(crate) const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!(Params, $field))),*];
        }
    };
}
pub(crate) use params;
