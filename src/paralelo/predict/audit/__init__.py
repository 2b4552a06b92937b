from paralelo.predict.audit.degrees import ep_degrees, pp_equal_stages, tp_degrees

__all__ = ["ep_degrees", "pp_equal_stages", "tp_degrees"]
