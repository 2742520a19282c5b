"""verl on a CPU, through verl's and vLLM's own plug-in hooks; inert unless VERL_PLATFORM=cpu, but for torchvision.

Reading order: `verl_plugin` (verl's entry point), `vllm_plugin` (vLLM's, and the distribution name that verl asks for),
`platform` (what a CPU is to verl), `patches` (what no hook reaches, one small function each), `torchvision` (beside a
torch without CUDA).
"""

__version__ = "0.1.0"  # that of raydebug
